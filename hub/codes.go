package hub

import "github.com/centrifugal/protocol"

// The code table: every error, unsubscribe and disconnect code that a client
// can meet. The meanings are those on which the official SDKs act (Centrifuge
// client protocol): an error that is temporary may be retried; an unsubscribe
// code from 2500 makes the SDK subscribe again; a disconnect code of 3000–3499
// makes it reconnect, one of 3500–3999 does not.

// Errors in replies to commands.
var (
	errInternal         = &protocol.Error{Code: 100, Message: "internal server error", Temporary: true}
	errUnknownOutcome   = &protocol.Error{Code: 100, Message: "outcome unknown"} // not temporary: a repeat without an id may double
	errUnauthorized     = &protocol.Error{Code: 101, Message: "unauthorized"}
	errUnknownChannel   = &protocol.Error{Code: 102, Message: "unknown channel"}
	errPermissionDenied = &protocol.Error{Code: 103, Message: "permission denied"}
	errMethodNotFound   = &protocol.Error{Code: 104, Message: "method not found"}
	errAlreadySubbed    = &protocol.Error{Code: 105, Message: "already subscribed"}
	errLimitExceeded    = &protocol.Error{Code: 106, Message: "limit exceeded"}
	errBadRequest       = &protocol.Error{Code: 107, Message: "bad request"}
	errNotAvailable     = &protocol.Error{Code: 108, Message: "not available"}
	errTokenExpired     = &protocol.Error{Code: 109, Message: "token expired"}
	errKeysPending      = &protocol.Error{Code: 100, Message: "the token's key may be about to be loaded", Temporary: true}
	errTooManyRequests  = &protocol.Error{Code: 111, Message: "too many requests", Temporary: true}
	errIDReused         = &protocol.Error{Code: 107, Message: "bad request: id was used for other content"}
	errUnrecoverable    = &protocol.Error{Code: 112, Message: "unrecoverable position"}
)

// badRequest is error 107 with the reason that helps its reader.
func badRequest(reason string) *protocol.Error {
	return &protocol.Error{Code: errBadRequest.Code, Message: "bad request: " + reason}
}

// unsubscribeCode says why the server ended a subscription.
type unsubscribeCode struct {
	code   uint32
	reason string
}

var (
	unsubServer       = unsubscribeCode{2000, "server unsubscribe"}
	unsubLost         = unsubscribeCode{2000, "permission lost"}
	unsubInsufficient = unsubscribeCode{2500, "insufficient state"}
	unsubExpired      = unsubscribeCode{2501, "subscription expired"}
)

// disconnectCode says why the server closed a connection; on a WebSocket it is
// the code and reason of the close frame.
type disconnectCode struct {
	code   uint16
	reason string
}

var (
	closeInternal     = disconnectCode{1011, "internal server error"}
	closeShutdown     = disconnectCode{3001, "shutdown"}
	closeExpired      = disconnectCode{3005, "connection expired"}
	closeTokenOver    = disconnectCode{3005, "token no longer valid"} // revoked, or its key removed
	closeSlow         = disconnectCode{3008, "slow"}
	closeNoPong       = disconnectCode{3012, "no pong"}
	closeInvalidToken = disconnectCode{3500, "invalid token"}
	closeUserRevoked  = disconnectCode{3500, "user revoked"}
	closeBadRequest   = disconnectCode{3501, "bad request"}
	closeStale        = disconnectCode{3502, "stale"}
	closeForced       = disconnectCode{3503, "force disconnect"}
)
