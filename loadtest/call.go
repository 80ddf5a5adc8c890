package loadtest

// called gets the answer to a call, or nil when the connection ended before, at a
// time on the swarm's clock. Its caller holds shard.mu.
type called func(m *message, at int64)

// call asks for an rpc of a connection that is subscribed; any goroutine may call it
// that holds no conn.mu. Without an error done is called, once.
func (c *conn) call(method string, data []byte, done called) error {
	codec := c.shard.swarm.options.codec
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sock == nil || !c.live {
		return errNotConnected
	}
	c.last++
	id := idCall + c.last
	if err := c.sock.send(appendFrame(nil, codec.op(), codec.appendRPC(nil, id, method, data))); err != nil {
		return err
	}
	if c.calls == nil {
		c.calls = make(map[uint32]called)
	}
	c.calls[id] = done
	return nil
}

// answered hands over the answer to a call.
func (c *conn) answered(m *message, at int64) {
	c.mu.Lock()
	done := c.calls[m.id]
	delete(c.calls, m.id)
	c.mu.Unlock()
	if done == nil {
		c.shard.fault(&c.shard.t.wrongAcknowledgement, "connection %d: an answer to call %d, which it never made", c.number, m.id-idCall)
		return
	}
	done(m, at)
}
