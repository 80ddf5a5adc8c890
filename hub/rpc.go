package hub

import (
	"github.com/centrifugal/protocol"
	"github.com/go-json-experiment/json"
)

// rpc handles the calls that hub adds to the protocol.
func (l *loop) rpc(c *conn, id uint32, req *protocol.RPCRequest) {
	switch req.Method {
	case "publish":
		l.rpcPublish(c, id, req.Data)
	case "operate":
		l.rpcOperate(c, id, req.Data)
	case "get":
		l.rpcGet(c, id, req.Data)
	case "list":
		l.rpcList(c, id, req.Data)
	case "snapshot":
		l.rpcSnapshot(c, id, req.Data)
	default:
		l.fail(c, id, errMethodNotFound)
	}
}

// roomOf is the room that the payload of an rpc names; empty when it is malformed.
func roomOf(data []byte) string {
	var req struct {
		Room string `json:"room"`
	}
	if json.Unmarshal(data, &req) != nil {
		return ""
	}
	return req.Room
}

// decodeRPC decodes the payload of an rpc, or fails it.
func (l *loop) decodeRPC(c *conn, id uint32, data []byte, into any) bool {
	err := decodeStrict(data, into)
	if err != nil {
		l.fail(c, id, badRequest(err.Error()))
	}
	return err == nil
}

// rpcResult answers an rpc.
func (l *loop) rpcResult(c *conn, id uint32, result any) {
	data, err := encodeJSON(result)
	if err != nil {
		l.fail(c, id, errInternal)
		return
	}
	l.reply(c, &protocol.Reply{Id: id, Rpc: &protocol.RPCResult{Data: data}})
}

// refuseRPC answers an rpc with a problem: as an error of the protocol, or as a
// result, by the table of problems.
func (l *loop) refuseRPC(c *conn, id uint32, p *problem) {
	if e := p.protocolError(); e != nil {
		l.fail(c, id, e)
		return
	}
	l.server.metrics.errors.WithLabelValues(p.Code).Inc()
	l.rpcResult(c, id, p)
}
