package hub

import (
	_ "embed"
	"net/http"
	"strconv"
)

// openAPI describes the HTTP routes: those of clients, of servers, and health. It
// is written by hand; a test holds it against the routes and their answers.
//
//go:embed openapi.json
var openAPI []byte

func serveOpenAPI(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h["Cache-Control"] = []string{"no-cache"}
	h["Content-Type"] = jsonType
	h["Content-Length"] = []string{strconv.Itoa(len(openAPI))}
	_, _ = w.Write(openAPI)
}
