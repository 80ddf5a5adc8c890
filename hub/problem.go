package hub

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/centrifugal/protocol"

	"hub/store"
)

// problem is an RFC 9457 problem document with a stable code of the table below.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Code   string `json:"code"`
	Detail string `json:"detail,omitempty"`
	// Step is the index of the step that was refused, Current the resource that it
	// met, as it stands in the room.
	Step    *int      `json:"step,omitempty"`
	Current *resource `json:"current,omitempty"`

	// retry, unless 0, is when a repeat makes sense; the Retry-After header tells it.
	retry time.Duration
}

// problemKind is a row of the table of problems.
type problemKind struct {
	status          int
	meaning, remedy string
	// rpc is the error that a socket gets in its place; nil: it gets the document
	// as the result of its rpc, since an error of the protocol has no payload.
	rpc *protocol.Error
}

// problems is the table of all codes of problem documents, over HTTP and in
// results of rpc. A code never changes its meaning. What has the status 429, 503
// or 504 was not applied and may be repeated as it is.
//
// Over rpc, a problem of the request itself, and one for which the protocol has a
// code, is an error of the protocol (rpc), as a publish would get it, so that SDKs
// handle it as ever. What the room's state or a bound refused is a result that holds
// the document: 404, 409, 413 and 422.
var problems = map[string]problemKind{
	"bad_request":                     {400, "The request is malformed.", "Correct what detail names.", errBadRequest},
	"body":                            {400, "The body cannot be read.", "Send it again.", errBadRequest},
	"unauthorized":                    {401, "There is no token or key, or it is not good.", "Send a token that is good for this database, or the API key.", errUnauthorized},
	"token_expired":                   {401, "The token is expired.", "Get a new one.", errTokenExpired},
	"token_revoked":                   {401, "The token was revoked.", "Get a new one, if its user may still come.", errTokenExpired},
	"development":                     {403, "A development server is only for this machine.", "Make a configuration with hub init.", errPermissionDenied},
	"host":                            {403, "The Host header names another server.", "Use the address of admin.listen.", errPermissionDenied},
	"origin":                          {403, "Pages of this origin may not connect.", "List it in server.origins.", errPermissionDenied},
	"permission_denied":               {403, "The caller may not do this.", "Ask for a token with the grant; the server's debug log names the rule.", errPermissionDenied},
	"unknown_database":                {404, "There is no such database.", "Use one of database.names, or create it.", errUnknownChannel},
	"unknown_method":                  {404, "There is no such method of the server API.", "See the list of methods.", errMethodNotFound},
	"unknown_room":                    {404, "The room's namespace is not declared.", "Declare it in the configuration.", errUnknownChannel},
	"not_found":                       {404, "There is no such path, resource, value or operation.", "Create it first.", nil},
	"method_not_allowed":              {405, "The path has other methods.", "Use one that the Allow header names.", errMethodNotFound},
	"busy":                            {409, "The server does something of that kind already.", "Repeat it when that has ended.", errInternal},
	"exists":                          {409, "The resource to create exists.", "Go on from current, or use set.", nil},
	"id_reused":                       {409, "The id was used in this room for other content.", "Use a new id for each operation.", nil},
	"not_available":                   {409, "The room's namespace does not have this.", "See the namespace's options.", errNotAvailable},
	"not_durable":                     {409, "The room has no history, so it has no resources and no ids.", "Use a namespace with durable = true.", nil},
	"unrecoverable":                   {409, "The room's history has another epoch.", "Start over from the present state.", errUnrecoverable},
	"version_conflict":                {409, "The resource does not have the version of if_version.", "Start over from current.", nil},
	"too_large":                       {413, "Something is larger than its bound.", "Make it smaller; page what is read.", nil},
	"unsupported_media_type":          {415, "The body is not declared to be JSON.", "Send Content-Type: application/json.", errBadRequest},
	"not_integer":                     {422, "What add met is not an integer between -(2^53-1) and 2^53-1.", "Set another value.", nil},
	"out_of_range":                    {422, "The sum would leave min, max or the exact integers.", "Accept it: there is not enough.", nil},
	"upgrade_required":                {426, "The request is no WebSocket handshake of version 13.", "Use a WebSocket client.", errBadRequest},
	"connections_ip":                  {429, "Too many connections from this address.", "Wait as long as Retry-After says.", errTooManyRequests},
	"rate_limited":                    {429, "Too many requests.", "Wait as long as Retry-After says.", errTooManyRequests},
	"request_header_fields_too_large": {431, "The header of the request is too large.", "Send fewer or smaller fields.", errBadRequest},
	"hijack":                          {500, "The connection cannot be upgraded.", "Report it.", errInternal},
	"outcome_unknown":                 {500, "The server stopped before it knew whether the write was applied.", "Send it again with the same id, or ask for the operation by its id.", errUnknownOutcome},
	"internal":                        {500, "The server has an error of its own.", "Report it; the server's log has more.", errInternal},
	"connections":                     {503, "Too many connections.", "Wait as long as Retry-After says.", errTooManyRequests},
	"draining":                        {503, "The server is stopping.", "Repeat it as it is.", errInternal},
	"keys_pending":                    {503, "The key of the token may be about to be loaded.", "Repeat it as it is.", errKeysPending},
	"not_ready":                       {503, "The server is not ready for clients.", "See detail.", errInternal},
	"overloaded":                      {503, "Large replies to slow readers take all the memory that they may.", "Repeat it as it is, or ask for smaller pages.", errTooManyRequests},
	"queue_full":                      {503, "Too many writes are waiting; this one was not applied.", "Repeat it as it is.", errTooManyRequests},
	"unavailable":                     {503, "The database cannot write or read; nothing was applied.", "Repeat it as it is; see the server's log.", errInternal},
	"write_timeout":                   {504, "The write waited too long for its turn and was not applied.", "Repeat it as it is.", errInternal},
	"http_version_not_supported":      {505, "A WebSocket handshake needs HTTP/1.1.", "Use HTTP/1.1.", errBadRequest},
	"database_limit":                  {507, "The server has as many databases as it may create.", "Use another server.", errLimitExceeded},
	"room_limit":                      {507, "The database has as many rooms as it may.", "Raise database.max_rooms.", errLimitExceeded},
}

// retryAfterRefusal is when a write that was refused for load is worth a repeat.
const retryAfterRefusal = time.Second

// newProblem makes a problem of a code of the table.
func newProblem(code, detail string) *problem {
	kind, ok := problems[code]
	if !ok {
		panic("problem code " + code + " is not in the table")
	}
	p := &problem{Type: "about:blank", Title: http.StatusText(kind.status), Status: kind.status, Code: code, Detail: detail}
	switch kind.status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		p.retry = retryAfterRefusal
	}
	return p
}

// protocolError is what a socket gets in place of p; nil when it gets p itself.
func (p *problem) protocolError() *protocol.Error {
	e := problems[p.Code].rpc
	switch {
	case e == nil || p.Detail == "":
		return e
	case e == errBadRequest:
		return badRequest(p.Detail)
	}
	return &protocol.Error{Code: e.Code, Message: p.Detail, Temporary: e.Temporary}
}

// storeProblem is the problem that an error of a write is; nil for nil. What callers
// cannot cause is logged.
func (s *Server) storeProblem(err error) *problem {
	var step *store.StepError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &step):
		return stepProblem(step)
	case errors.Is(err, store.ErrTooLarge):
		return newProblem("too_large", "the event of the operation would be larger than 256 KiB")
	case errors.Is(err, store.ErrQueueFull):
		return newProblem("queue_full", "write queue full")
	case errors.Is(err, store.ErrWriteTimeout):
		return newProblem("write_timeout", "write timeout: not applied")
	case errors.Is(err, store.ErrRoomLimit):
		return newProblem("room_limit", "")
	case errors.Is(err, store.ErrIDReused):
		return newProblem("id_reused", "this id was used in this room for other content")
	case errors.Is(err, store.ErrUnknownOutcome): // which may be ErrUnavailable too
		return newProblem("outcome_unknown", "it is not known whether the write was applied")
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, store.ErrClosed):
		return newProblem("unavailable", "database cannot write: not applied")
	}
	s.log.Error("write failed", slog.Any("error", err))
	return newProblem("internal", "")
}

// stepProblem is the problem that the refusal of a step is, with the resource as it
// stands.
func stepProblem(e *store.StepError) *problem {
	code := "internal"
	switch e.Reason {
	case store.VersionConflict:
		code = "version_conflict"
	case store.Exists:
		code = "exists"
	case store.Missing:
		code = "not_found"
	case store.OutOfRange:
		code = "out_of_range"
	case store.NotInteger:
		code = "not_integer"
	case store.Invalid: // a merge that nests too deep
		code = "bad_request"
	}
	p := newProblem(code, fmt.Sprintf("steps/%d: %s", e.Step, e.Detail))
	p.Step = &e.Step
	// Version 0 says that it does not exist, as if_version does.
	p.Current = &resource{Key: e.Current.Key, Version: e.Current.Version, Value: e.Current.Value}
	return p
}

// protocolProblem is the problem that an error of the protocol is; nil for nil.
func protocolProblem(e *protocol.Error) *problem {
	if e == nil {
		return nil
	}
	for _, k := range protocolCodes {
		if k.code == e.Code {
			return newProblem(k.problem, strings.TrimPrefix(e.Message, errBadRequest.Message+": "))
		}
	}
	return newProblem("internal", "")
}

// protocolCodes are the problems that errors of the protocol are.
var protocolCodes = []struct {
	code    uint32
	problem string
}{
	{errUnauthorized.Code, "unauthorized"},
	{errUnknownChannel.Code, "unknown_room"},
	{errPermissionDenied.Code, "permission_denied"},
	{errLimitExceeded.Code, "too_large"},
	{errBadRequest.Code, "bad_request"},
	{errNotAvailable.Code, "not_available"},
	{errTokenExpired.Code, "token_expired"},
	{errTooManyRequests.Code, "rate_limited"},
	{errUnrecoverable.Code, "unrecoverable"},
}

// encodeJSON is v as JSON that leaves values inside as they are, but for
// insignificant space.
func encodeJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte{'\n'}), err
}
