package store_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// An operation of 1 KB is stored as event, record and value; none of them may
// take a page of its own (that made 6.1 KB, it is 2.8 KB).
func TestFileBytesPerOperation(t *testing.T) {
	const operations = 500
	o := options(t)
	db := open(t, o)
	value := `"` + strings.Repeat("x", 1000) + `"`
	var answers []<-chan operated
	for i := range operations {
		answers = append(answers, start(db, operation("r", fmt.Sprint("id", i), set(fmt.Sprint("k", i%10), value))))
	}
	for _, c := range answers {
		if a := await(t, c); a.err != nil {
			t.Fatal(a.err)
		}
	}
	shut(t, db)
	info, err := os.Stat(o.Path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Size() / operations; got > 3500 {
		t.Errorf("the file has %d bytes per operation, want at most 3,500", got)
	}
}
