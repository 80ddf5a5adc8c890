package auth

import (
	"fmt"
	"sync"
	"testing"
)

// Grants are shared by text, whoever asks first, and what is remembered is bounded.
func TestSharedGrants(t *testing.T) {
	var s sharedGrants
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			for i := range 2 * maxShared {
				room := fmt.Sprintf("room%d", (i+worker)%(maxShared+10))
				g, err := s.parse([]byte(`[{"channels":["` + room + `"],"allow":["sub"]}]`))
				if err != nil || !g.Allow(room, Subscribe) || g.Allow("other", Subscribe) {
					t.Errorf("%s: %v, %v", room, g, err)
					return
				}
			}
		})
	}
	all.Wait()
	if n := len(s.byRaw); n == 0 || n > maxShared {
		t.Errorf("%d grants remembered, want 1 to %d", n, maxShared)
	}
	one, _ := s.parse([]byte(`[{"channels":["a"],"allow":["sub"]}]`))
	two, _ := s.parse([]byte(`[{"channels":["a"],"allow":["sub"]}]`))
	if &one[0] != &two[0] {
		t.Error("the same caps were parsed twice")
	}
	if _, err := s.parse([]byte(`[{"channels":["a"],"allow":["fly"]}]`)); err == nil {
		t.Error("wrong caps were accepted")
	}
}
