package hub

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/centrifugal/protocol"

	"hub/auth"
)

// The server API takes the requests of Centrifugo's HTTP API and answers in its
// shapes: status 200 with a result or an error {code, message}.

// maxAPIBody bounds a request of the server API, in bytes.
const maxAPIBody = 16 << 20

// apiCall begins a method and returns how to wait for its result. Writes are
// submitted before it returns, so that those of a batch share commits; whatever
// else there is to do happens in wait.
type apiCall func(db *database, body []byte) (wait func() (any, *protocol.Error))

// apiMethods are the methods of the server API, batch excepted. ordered says
// that wait does the work, so that what came before must have ended.
var apiMethods = map[string]struct {
	call    apiCall
	ordered bool
}{
	"publish":        {apiPublish, false},
	"broadcast":      {apiBroadcast, false},
	"subscribe":      {apiSubscribe, true},
	"unsubscribe":    {apiUnsubscribe, true},
	"disconnect":     {apiDisconnect, true},
	"refresh":        {apiRefresh, true},
	"presence":       {apiPresence, true},
	"presence_stats": {apiPresenceStats, true},
	"history":        {apiHistory, true},
	"history_remove": {apiHistoryRemove, true},
	"channels":       {apiChannels, true},
	"info":           {apiInfo, true},
}

// serveAPI checks the key and runs one method.
func (s *Server) serveAPI(w http.ResponseWriter, r *http.Request) {
	key := s.policy.Load().API.Key
	if key == "" {
		writeProblem(w, newProblem("not_found", "the server API is switched off: see api.key"))
		return
	}
	if !auth.KeyEqual(key, apiKey(r)) {
		w.Header().Set("WWW-Authenticate", `apikey realm="hub"`)
		writeProblem(w, newProblem("unauthorized", "send X-API-Key, or Authorization: apikey, with the API key"))
		return
	}
	name := r.PathValue("db")
	if name == "" {
		name = "default"
	}
	db := s.databases.get(name)
	if db == nil {
		writeProblem(w, newProblem("unknown_database", "there is no such database"))
		return
	}
	body, p := readBody(w, r, maxAPIBody)
	if p != nil {
		writeProblem(w, p)
		return
	}
	method := r.PathValue("method")
	if method == "batch" {
		replies, e := apiBatch(db, body)
		if e != nil {
			writeJSON(w, http.StatusOK, apiReply{Error: apiErrorOf(e)})
			return
		}
		writeJSON(w, http.StatusOK, map[string]any{"replies": replies})
		return
	}
	m, ok := apiMethods[method]
	if !ok {
		writeProblem(w, newProblem("unknown_method", "there is no such method of the server API"))
		return
	}
	result, e := m.call(db, body)()
	writeJSON(w, http.StatusOK, apiReply{Error: apiErrorOf(e), Result: result})
}

func apiKey(r *http.Request) string {
	if key := r.Header.Get("X-API-Key"); key != "" {
		return key
	}
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "apikey") {
		return ""
	}
	return strings.TrimSpace(key)
}

// apiReply is the answer to one method.
type apiReply struct {
	Error  *apiError `json:"error,omitempty"`
	Result any       `json:"result,omitempty"`
}

type apiError struct {
	Code    uint32 `json:"code"`
	Message string `json:"message"`
}

func apiErrorOf(e *protocol.Error) *apiError {
	if e == nil {
		return nil
	}
	return &apiError{Code: e.Code, Message: e.Message}
}

// decoded is an apiCall whose request is decoded into a T first.
func decoded[T any](body []byte, call func(*T) func() (any, *protocol.Error)) func() (any, *protocol.Error) {
	req := new(T)
	if len(body) > 0 {
		if err := decodeStrict(body, req); err != nil {
			return refused(badRequest(err.Error()))
		}
	}
	return call(req)
}

// refused is a wait whose outcome is known.
func refused(e *protocol.Error) func() (any, *protocol.Error) {
	return func() (any, *protocol.Error) { return nil, e }
}

// apiBatch runs several methods in order and answers each.
func apiBatch(db *database, body []byte) ([]map[string]any, *protocol.Error) {
	var req struct {
		Commands []json.RawMessage `json:"commands"`
		Parallel bool              `json:"parallel"` // commands keep their order all the same
	}
	if err := decodeStrict(body, &req); err != nil {
		return nil, badRequest(err.Error())
	}
	replies := make([]map[string]any, len(req.Commands))
	var waiting []func()
	settle := func() {
		for _, wait := range waiting {
			wait()
		}
		waiting = waiting[:0]
	}
	for i, command := range req.Commands {
		method, body, e := batchCommand(command)
		if e != nil {
			replies[i] = map[string]any{"error": apiErrorOf(e)}
			continue
		}
		m := apiMethods[method]
		if m.ordered {
			settle()
		}
		wait := m.call(db, body)
		waiting = append(waiting, func() {
			result, e := wait()
			if e != nil {
				replies[i] = map[string]any{"error": apiErrorOf(e)}
				return
			}
			replies[i] = map[string]any{method: result}
		})
		if m.ordered {
			settle()
		}
	}
	settle()
	return replies, nil
}

func batchCommand(raw json.RawMessage) (method string, body []byte, e *protocol.Error) {
	var command map[string]json.RawMessage
	if decodeStrict(raw, &command) != nil || len(command) != 1 {
		return "", nil, badRequest("a command of a batch is an object with one method")
	}
	for method, body := range command {
		if _, ok := apiMethods[method]; !ok {
			return "", nil, errMethodNotFound
		}
		return method, body, nil
	}
	return "", nil, errMethodNotFound
}
