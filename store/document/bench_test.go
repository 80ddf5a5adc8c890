package document_test

import (
	"fmt"
	"strings"
	"testing"

	"hub/store/document"
)

// kilobyte is an object of about 1 KiB as a game would keep it, with /stock/amount
// at its end.
func kilobyte() string {
	var b strings.Builder
	b.WriteString(`{"name":"north market","open":true,"items":[`)
	for i := range 16 {
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, `{"id":"item-%04d","price":%d.50,"tags":["a","b"]}`, i, i)
	}
	b.WriteString(`],"note":"`)
	b.WriteString(strings.Repeat("x", 1024-len(`","stock":{"amount":100000}}`)-b.Len()))
	return b.String() + `","stock":{"amount":100000}}`
}

func BenchmarkCompact(b *testing.B) {
	for name, value := range map[string]string{
		"value=kilobyte":     kilobyte(),
		"value=small":        `{"to":"u1"}`,
		"value=1000 members": manyMembers(999, `"z":1`),
	} {
		b.Run(name, func(b *testing.B) {
			text := []byte(value)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := document.Compact(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkAdd(b *testing.B) {
	least := int64(0)
	for _, c := range []struct {
		name, value string
		by          int64
	}{
		{"value=kilobyte", kilobyte(), -1},
		{"value=small", `{"stock":{"amount":100000}}`, -1},
		{"value=kilobyte/refused", kilobyte(), -100_001},
	} {
		b.Run(c.name, func(b *testing.B) {
			text := compact(b, c.value)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := document.Add(text, "/stock/amount", c.by, &least, nil); (err != nil) != (c.by < -1) {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkMerge has the two cases in which a simpler way is not linear: a patch
// of many members, and one that is deep above a large value.
func BenchmarkMerge(b *testing.B) {
	for _, c := range []struct{ name, value, patch string }{
		{"case=kilobyte", kilobyte(), `{"open":false,"stock":{"amount":99999},"by":"u1"}`},
		{"case=many", manyMembers(4000, `"z":1`), manyMembers(4000, `"y":1`)},
		{"case=deep", nested(100, manyMembers(4000, `"z":1`), "a"), nested(100, manyMembers(4000, `"y":1`), "a")},
	} {
		b.Run(c.name, func(b *testing.B) {
			value, patch := compact(b, c.value), compact(b, c.patch)
			b.SetBytes(int64(len(value) + len(patch)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := document.Merge(value, patch); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
