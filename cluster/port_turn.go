package cluster

import "net"

// turnConn lets few handshakes of clients compute at once, however many run: a
// herd of agents that come back would else stand before the failure detector's
// pings, hundreds of them in the queue for the processors, until this server
// took its peers for silent. A handshake gives its turn away while it waits for
// the network, so that a slow or hostile client holds up nobody.
//
// Between begin and end it is used by the handshake's goroutine alone; after
// that it is nothing but the connection.
type turnConn struct {
	net.Conn
	turns chan struct{}
	on    bool // begin was called, end was not
}

// begin waits for a turn.
func (c *turnConn) begin() {
	c.turns <- struct{}{} // whoever has one computes, and is done soon
	c.on = true
}

// end gives the turn back, if there is one.
func (c *turnConn) end() {
	if c.on {
		c.on = false
		<-c.turns
	}
}

// Read reads without a turn.
func (c *turnConn) Read(p []byte) (int, error) {
	if !c.on {
		return c.Conn.Read(p)
	}
	c.end()
	defer c.begin()
	return c.Conn.Read(p)
}

// Write writes without a turn.
func (c *turnConn) Write(p []byte) (int, error) {
	if !c.on {
		return c.Conn.Write(p)
	}
	c.end()
	defer c.begin()
	return c.Conn.Write(p)
}
