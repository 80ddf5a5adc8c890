package hub

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"hub/store"
)

// A resource's ETag is its version; whoever has it gets 304, and HEAD no body.
func TestRestCaching(t *testing.T) {
	s := restServer(t)
	ann, path := bearerOf(t, "ann"), rooms+"open:a/resources/k"
	operate := func(id, step string) {
		t.Helper()
		s.call(t, "POST", rooms+"open:a/operations", `{"id":"`+id+`","steps":[`+step+`]}`, ann).want(t, id, 200, "")
	}
	s.call(t, "GET", path, "", ann, "If-None-Match: *").want(t, "before it is there", 404, "not_found")
	operate("1", `{"op":"set","key":"k","value":1}`)
	operate("2", `{"op":"set","key":"k","value":2}`)
	for match, status := range map[string]int{
		``: 200, `"1"`: 200, `"22"`: 200, `2`: 200, `"2`: 200,
		`"2"`: 304, `W/"2"`: 304, `*`: 304, `"1", "2"`: 304, `"1",W/"2" , "3"`: 304,
	} {
		for _, method := range []string{"GET", "HEAD"} {
			lines := []string{ann}
			if match != "" {
				lines = append(lines, "If-None-Match: "+match)
			}
			a := s.call(t, method, path, "", lines...)
			if a.status != status || a.header.Get("ETag") != `"2"` || a.header.Get("Cache-Control") != "private, no-cache" {
				t.Errorf("%s with %s: got %s with %v, want %d", method, match, a, a.header, status)
			}
			if (len(a.body) > 0) != (status == 200 && method == "GET") {
				t.Errorf("%s with %s: the body is %q", method, match, a.body)
			}
			if length := a.header.Get("Content-Length"); status == 200 && length != "34" {
				t.Errorf("%s with %s: Content-Length %q", method, match, length)
			}
		}
	}
	if a := s.call(t, "GET", path, "", ann, `If-None-Match: "1"`, `If-None-Match: "2"`); a.status != 304 {
		t.Errorf("two lines: got %s, want 304", a)
	}
	operate("3", `{"op":"delete","key":"k"}`)
	if a := s.call(t, "GET", path, "", ann, `If-None-Match: "3"`).want(t, "deleted", 404, "not_found"); a.header.Get("Cache-Control") != "no-store" || a.header.Get("ETag") != "" {
		t.Errorf("a deleted resource comes with %v", a.header)
	}
	operate("4", `{"op":"create","key":"k","value":4}`)
	if a := s.call(t, "GET", path, "", ann, `If-None-Match: "2"`); a.status != 200 || a.header.Get("ETag") != `"4"` {
		t.Errorf("created anew: got %s with %v, want version 4", a, a.header)
	}
}

// pages follows next to the end; each page is handed over with its elements.
func (s *testServer) pages(t *testing.T, path, line, list string, page func(object, []any)) {
	t.Helper()
	for after := ""; ; {
		a := s.call(t, "GET", path+after, "", line).want(t, path+after, 200, "")
		o := a.object()
		elements, _ := o[list].([]any)
		page(o, elements)
		next, more := o["next"]
		if !more || t.Failed() {
			return
		}
		if n, ok := next.(float64); ok {
			next = strconv.FormatInt(int64(n), 10)
		}
		after = "&after=" + url.QueryEscape(next.(string))
	}
}

// Paging sees each publication once and in order, whatever is published meanwhile.
func TestRestHistoryPages(t *testing.T) {
	s := restServer(t)
	ann := bearerOf(t, "ann")
	publish := func(n int) {
		s.call(t, "POST", rooms+"open:a/publish", fmt.Sprintf(`{"data":%d}`, n), ann).want(t, "publish", 200, "")
	}
	const before = 25
	for n := 1; n <= before; n++ {
		publish(n)
	}
	for query, step := range map[string]int{"limit=7": 1, "limit=7&reverse=false": 1, "limit=7&reverse=true": -1} {
		want, top, n := 1, 0, 0
		s.pages(t, rooms+"open:a/history?"+query, ann, "publications", func(o object, pubs []any) {
			top = int(o["offset"].(float64))
			if n == 0 && step < 0 {
				want = top
			}
			for _, p := range pubs {
				p := p.(object)
				if p["offset"] != float64(want) || p["data"] != float64(want) {
					t.Fatalf("%s: got %v, want number %d", query, p, want)
				}
				want += step
			}
			if len(pubs) > 7 || o["pruned"] != nil {
				t.Fatalf("%s: page %v", query, o)
			}
			if n++; n <= 4 { // which a reader that goes backwards does not see
				publish(top + 1)
			}
		})
		if end := map[int]int{1: top + 1, -1: 0}[step]; want != end || n < 4 {
			t.Errorf("%s: ended before number %d after %d pages, want %d", query, want, n, end)
		}
	}
	// No border is left out, whatever the size of a page.
	for limit := range 3 {
		for _, query := range []string{"", "&reverse=true"} {
			seen := make(map[any]int)
			top := 0.0
			s.pages(t, fmt.Sprintf("%sopen:a/history?limit=%d%s", rooms, limit+1, query), ann, "publications", func(o object, pubs []any) {
				top = o["offset"].(float64)
				for _, p := range pubs {
					seen[p.(object)["offset"]]++
				}
			})
			if len(seen) != int(top) {
				t.Errorf("pages of %d%s: saw %d publications of %v", limit+1, query, len(seen), top)
			}
		}
	}
	// An epoch that the room does not have, alone and with an offset.
	for _, query := range []string{"epoch=x", "epoch=x&after=3"} {
		s.call(t, "GET", rooms+"open:a/history?"+query, "", ann).want(t, query, 409, "unrecoverable")
	}
	epoch := s.call(t, "GET", rooms+"open:a/history?limit=1", "", ann).object()["epoch"].(string)
	o := s.call(t, "GET", rooms+"open:a/history?limit=1&epoch="+url.QueryEscape(epoch), "", ann).want(t, "the epoch", 200, "").object()
	if first := o["publications"].([]any)[0].(object)["offset"]; first != 1.0 {
		t.Errorf("an epoch alone begins at %v, want 1", first)
	}
}

// A page says when what it should begin with is gone.
func TestRestHistoryPruned(t *testing.T) {
	o := restOptions(t)
	short := openNamespace()
	short.HistorySize = 3
	o.Namespaces["short"] = short
	s := startServer(t, o, nil)
	for range 5 {
		s.call(t, "POST", rooms+"short:a/publish", `{"data":1}`, keyLine).want(t, "publish", 200, "")
	}
	for query, want := range map[string]string{
		"?after=1": "true [3 4 5]", "?after=2": "<nil> [3 4 5]", "?after=5": "<nil> []", "": "<nil> [3 4 5]", "?after=0&limit=1": "true [3]",
		"?reverse=true": "<nil> [5 4 3]", "?reverse=true&after=4": "<nil> [3]",
	} {
		page := s.call(t, "GET", rooms+"short:a/history"+query, "", keyLine).want(t, query, 200, "").object()
		offsets := []any{}
		for _, p := range page["publications"].([]any) {
			offsets = append(offsets, p.(object)["offset"])
		}
		if got := fmt.Sprint(page["pruned"], offsets); got != want {
			t.Errorf("%s: got %s, want %s", query, got, want)
		}
	}
}

// Pages of resources hold each of those that were there all the time once and in
// order, while others come and go.
func TestRestResourcePages(t *testing.T) {
	s := restServer(t)
	ann := bearerOf(t, "ann")
	operate := func(id string, steps ...string) {
		s.call(t, "POST", rooms+"open:a/operations", `{"id":"`+id+`","steps":[`+strings.Join(steps, ",")+`]}`, ann).want(t, id, 200, "")
	}
	var fill []string
	for i := range 60 {
		fill = append(fill, fmt.Sprintf(`{"op":"set","key":"keep/%02d","value":%d}`, i, i))
	}
	operate("fill", fill...)
	operate("others", `{"op":"set","key":"a","value":1}`, `{"op":"set","key":"keep0","value":1}`)
	want, n := 0, 0
	s.pages(t, rooms+"open:a/resources?limit=7&prefix=keep%2F", ann, "resources", func(o object, list []any) {
		for _, r := range list {
			key := r.(object)["key"].(string)
			if !strings.HasSuffix(key, "x") {
				if key != fmt.Sprintf("keep/%02d", want) {
					t.Fatalf("got %s, want number %d", key, want)
				}
				want++
			}
		}
		n++
		operate(fmt.Sprint("page", n), fmt.Sprintf(`{"op":"set","key":"keep/%02dx","value":1}`, 5*n))
	})
	if want != 60 {
		t.Errorf("saw %d, want 60", want)
	}
}

// A snapshot that is too large says what to do instead, and pages get through.
func TestRestSnapshotBound(t *testing.T) {
	s := restServer(t)
	ann, n := bearerOf(t, "ann"), 0
	value := []byte(`"` + strings.Repeat("x", 63<<10) + `"`)
	grow := func(by int) {
		steps := make([]store.Step, by)
		for i := range steps {
			steps[i] = store.Step{Op: store.StepSet, Key: fmt.Sprint(n), Value: value}
			n++
		}
		done := make(chan error, 1)
		s.databases.get("default").store.Operate(store.Operation{Room: "open:a", ID: fmt.Sprint(n), Steps: steps},
			func(_ store.OperationResult, err error) { done <- err })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	most := maxSnapshot / (len(value) + 100)
	for n < most {
		grow(min(50, most-n))
	}
	s.call(t, "GET", rooms+"open:a/snapshot", "", ann).want(t, "what fits", 200, "")
	grow(2)
	s.call(t, "GET", rooms+"open:a/snapshot", "", ann).want(t, "what does not", 413, "too_large")
	got := 0
	s.pages(t, rooms+"open:a/resources?limit=1000", ann, "resources", func(_ object, list []any) { got += len(list) })
	if got != n {
		t.Errorf("pages had %d resources, want %d", got, n)
	}
}
