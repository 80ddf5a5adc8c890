package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"
)

// A swarm is the generator's side of many connections: raw sockets and one epoll
// instance, read by the goroutine that calls its methods. It knows the protocol
// as a client does and shares no code with the server.
//
// Every event carries its room, its number in the room and the time at which it
// was meant to be sent, so each peer checks what it gets by itself.
type swarm struct {
	// fixed after new
	epfd  int
	addr  unix.SockaddrInet4 // of the server
	start time.Time          // zero of the clock that stamps events
	rooms int                // peer i is in room i % rooms

	peers  []peer
	events [1024]unix.EpollEvent
	buf    [256 << 10]byte
	seq    []uint64 // number of each room's last event
	err    error    // the first failure
	// replied, unless nil, is called for each peer whose commands were answered.
	replied func(p *peer, n int) error

	ready    int // peers that are subscribed
	acks     int // publish commands answered
	got      int // events received
	bytes    int // received
	last     int64
	latency  *hdrhistogram.Histogram // of the events, in microseconds
	lost     int                     // numbers skipped
	repeated int                     // numbers at or below one that was received
	strays   int                     // events of another room
}

// peer is one connection of a swarm.
type peer struct {
	fd      int
	state   peerState
	room    int
	prefix  []byte // how a push of its room begins
	next    uint64 // number of the event that is due
	replies int    // to its first two commands
	acked   int    // publish commands answered by the frames of one read
	hello   []byte // its first frame: connect and subscribe
	part    []byte // of a frame that is not complete
	receive int    // size of its receive buffer; 0 is the system's
	apart   bool   // its latencies do not count
}

type peerState uint8

const (
	connecting  peerState = iota
	upgrading             // the request is sent
	subscribing           // so is the first frame
	subscribed
)

const (
	window     = 256              // handshakes in flight
	stall      = 10 * time.Second // without progress is a failure
	slowest    = 60_000_000       // microseconds, the histogram's end
	peersPerIP = 1_000
	dataSize   = 150 // bytes of an event's data
)

const upgradeRequest = "GET /connection/websocket HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
	"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nUser-Agent: bench\r\n\r\n"

// newSwarm prepares one peer for each token.
func newSwarm(addr unix.SockaddrInet4, rooms int, tokens []string) (*swarm, error) {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	s := &swarm{
		epfd: epfd, addr: addr, start: time.Now(), rooms: rooms,
		peers: make([]peer, len(tokens)), seq: make([]uint64, rooms),
		latency: hdrhistogram.New(1, slowest, 3),
	}
	for i := range s.peers {
		p := &s.peers[i]
		p.fd, p.room, p.next = -1, i%rooms, 1
		p.prefix = fmt.Appendf(nil, `{"push":{"channel":"%s",`, roomName(p.room))
		p.hello = appendMasked(nil, fmt.Appendf(nil,
			`{"id":1,"connect":{"token":"%s","name":"bench"}}`+"\n"+`{"id":2,"subscribe":{"channel":"%s"}}`, tokens[i], roomName(p.room)))
	}
	return s, nil
}

func roomName(room int) string { return "bench:" + strconv.Itoa(room) }

// appendMasked appends a client's text frame (RFC 6455 section 5.2).
func appendMasked(dst, payload []byte) []byte {
	const first, masked = 0x81, 0x80
	switch n := len(payload); {
	case n < 126:
		dst = append(dst, first, masked|byte(n))
	case n < 1<<16:
		dst = binary.BigEndian.AppendUint16(append(dst, first, masked|126), uint16(n))
	default:
		dst = binary.BigEndian.AppendUint64(append(dst, first, masked|127), uint64(n))
	}
	key := [4]byte{0x5a, 0xc3, 0x96, 0x0f}
	dst = append(dst, key[:]...)
	for i, b := range payload {
		dst = append(dst, b^key[i&3])
	}
	return dst
}

func (s *swarm) now() int64 { return int64(time.Since(s.start)) }

// open connects everybody, each peersPerIP from an address of their own, and
// returns the time until the last is subscribed.
func (s *swarm) open(source func() [4]byte) (time.Duration, error) {
	begin := time.Now()
	var from [4]byte
	next := 0
	err := s.until(func() bool {
		for ; next < len(s.peers) && next-s.ready < window; next++ {
			if next%peersPerIP == 0 {
				from = source()
			}
			if err := s.dial(next, from); err != nil {
				s.fail(fmt.Errorf("connect %d: %w", next, err))
				return true
			}
		}
		return s.ready == len(s.peers)
	})
	return time.Since(begin), err
}

func (s *swarm) dial(i int, from [4]byte) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	s.peers[i].fd = fd
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil { // as browsers do
		return err
	}
	if size := s.peers[i].receive; size > 0 {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, size); err != nil {
			return err
		}
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: from}); err != nil {
		return err
	}
	if err := unix.Connect(fd, &s.addr); err != nil && err != unix.EINPROGRESS {
		return err
	}
	return unix.EpollCtl(s.epfd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLOUT, Fd: int32(i)})
}

// close drops the connections; reset leaves no TIME_WAIT behind.
func (s *swarm) close(reset bool) {
	for i := range s.peers {
		fd := s.peers[i].fd
		if fd < 0 { // never opened, or closed before
			continue
		}
		if reset {
			_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		}
		_ = unix.Close(fd)
		s.peers[i].fd = -1
	}
	if s.epfd >= 0 {
		_ = unix.Close(s.epfd)
		s.epfd = -1
	}
}

func (s *swarm) fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

// until reads until done or the first failure; standing still is one.
func (s *swarm) until(done func() bool) error {
	progress, moved := s.bytes, time.Now()
	for !done() && s.err == nil {
		s.poll(100)
		if s.bytes != progress {
			progress, moved = s.bytes, time.Now()
		} else if time.Since(moved) > stall {
			s.fail(errors.Join(fmt.Errorf("nothing came for %v: %d of %d subscribed, %d events, %d answers",
				stall, s.ready, len(s.peers), s.got, s.acks), s.check()))
		}
	}
	return s.err
}

// poll handles what is ready, waiting up to so many milliseconds.
func (s *swarm) poll(milliseconds int) {
	n, err := unix.EpollWait(s.epfd, s.events[:], milliseconds)
	if err != nil && err != unix.EINTR {
		s.fail(err)
		return
	}
	for _, e := range s.events[:max(n, 0)] {
		p := &s.peers[e.Fd]
		err := error(nil)
		if p.state == connecting {
			err = s.connected(p, int(e.Fd))
		} else {
			err = s.read(p)
		}
		if err != nil {
			s.fail(fmt.Errorf("connection %d: %w", e.Fd, err))
			return
		}
	}
}

// connected sends the upgrade request.
func (s *swarm) connected(p *peer, i int) error {
	if code, err := unix.GetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || code != 0 {
		return errors.Join(err, unix.Errno(code))
	}
	s.bytes++ // progress
	if err := unix.EpollCtl(s.epfd, unix.EPOLL_CTL_MOD, p.fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)}); err != nil {
		return err
	}
	p.state = upgrading
	return p.send([]byte(upgradeRequest))
}

// send writes b at once; the generator never sends more than a socket takes.
func (p *peer) send(b []byte) error {
	n, err := unix.Write(p.fd, b)
	if err == nil && n < len(b) {
		err = fmt.Errorf("the socket took %d of %d bytes", n, len(b))
	}
	return err
}

// read makes one read and handles the frames in it.
func (s *swarm) read(p *peer) error {
	held := copy(s.buf[:], p.part)
	n, err := unix.Read(p.fd, s.buf[held:])
	switch {
	case err == unix.EAGAIN:
		return nil
	case err != nil:
		return err
	case n == 0:
		return errors.New("closed by the server")
	}
	s.bytes += n
	data, err := s.handle(p, s.buf[:held+n], s.now())
	if err != nil {
		return err
	}
	if len(data) == 0 {
		p.part = nil
	} else {
		p.part = append(p.part[:0:0], data...)
	}
	if n := p.acked; n > 0 {
		p.acked = 0
		s.acks += n
		if s.replied != nil {
			return s.replied(p, n)
		}
	}
	return nil
}

// handle takes complete frames off data and returns the rest.
func (s *swarm) handle(p *peer, data []byte, at int64) ([]byte, error) {
	if p.state == upgrading {
		end := bytes.Index(data, []byte("\r\n\r\n"))
		if end < 0 {
			return data, nil
		}
		if !bytes.HasPrefix(data, []byte("HTTP/1.1 101 ")) {
			return nil, fmt.Errorf("upgrade refused: %.200q", data)
		}
		data = data[end+4:]
		p.state = subscribing
		if err := p.send(p.hello); err != nil {
			return nil, err
		}
		p.hello = nil
	}
	for len(data) >= 2 {
		size, header := int(data[1]), 2
		if size == 126 {
			if len(data) < 4 {
				break
			}
			size, header = int(binary.BigEndian.Uint16(data[2:])), 4
		} else if size > 126 {
			return nil, fmt.Errorf("unexpected frame % x", data[:2])
		}
		if len(data) < header+size {
			break
		}
		payload := data[header : header+size]
		if data[0] != 0x81 {
			return nil, fmt.Errorf("unexpected frame % x %q", data[0], payload)
		}
		for len(payload) > 0 {
			line, rest, _ := bytes.Cut(payload, []byte{'\n'})
			if err := s.message(p, line, at); err != nil {
				return nil, err
			}
			payload = rest
		}
		data = data[header+size:]
	}
	return data, nil
}

// message handles one reply or push.
func (s *swarm) message(p *peer, line []byte, at int64) error {
	switch {
	case bytes.HasPrefix(line, []byte(`{"push":`)):
		return s.event(p, line, at)
	case bytes.HasPrefix(line, []byte(`{"id":`)):
		if bytes.Contains(line, []byte(`"error":`)) {
			return fmt.Errorf("answered %q", line)
		}
		if p.state == subscribed {
			p.acked++
		} else if p.replies++; p.replies == 2 {
			p.state = subscribed
			s.ready++
		}
		return nil
	case string(line) == "{}":
		return p.send(appendMasked(nil, line))
	}
	return fmt.Errorf("unexpected message %q", line)
}

// Places of the values in an event's data, see appendEvent.
const (
	eventRoom = len(`{"room":"`)
	eventSeq  = eventRoom + 6 + len(`","seq":"`)
	eventTime = eventSeq + 10 + len(`","t":"`)
)

// appendEvent appends the data of an event; its values have a fixed width.
func appendEvent(dst []byte, room int, seq uint64, at int64) []byte {
	begin := len(dst)
	dst = fmt.Appendf(dst, `{"room":"%06d","seq":"%010d","t":"%020d","d":"`, room, seq, at)
	for len(dst)-begin < dataSize-2 {
		dst = append(dst, 'x')
	}
	return append(dst, `"}`...)
}

// event checks a push and records its latency.
func (s *swarm) event(p *peer, line []byte, at int64) error {
	begin := bytes.Index(line, []byte(`"data":{"room":"`))
	if begin < 0 || begin+len(`"data":`)+dataSize > len(line) {
		return fmt.Errorf("unexpected push %q", line)
	}
	data := line[begin+len(`"data":`):]
	seq := decimal(data[eventSeq : eventSeq+10])
	sent := int64(decimal(data[eventTime : eventTime+20]))
	if int(decimal(data[eventRoom:eventRoom+6])) != p.room || !bytes.HasPrefix(line, p.prefix) {
		s.strays++
		return nil
	}
	switch {
	case seq < p.next:
		s.repeated++
	case seq > p.next:
		s.lost += int(seq - p.next)
		fallthrough
	default:
		p.next = seq + 1
	}
	s.got++
	s.last = at
	if p.apart {
		return nil
	}
	return s.latency.RecordValue(max(1, min((at-sent)/1000, slowest)))
}

func decimal(digits []byte) (n uint64) {
	for _, d := range digits {
		n = 10*n + uint64(d-'0')
	}
	return n
}

// publishing returns a frame with n publish commands for a room's next events.
func (s *swarm) publishing(room, n int, at int64) []byte {
	payload := make([]byte, 0, n*(dataSize+64))
	for i := range n {
		if i > 0 {
			payload = append(payload, '\n')
		}
		s.seq[room]++
		payload = fmt.Appendf(payload, `{"id":%d,"publish":{"channel":"%s","data":`, 2+s.seq[room], roomName(room))
		payload = append(appendEvent(payload, room, s.seq[room], at), `}}`...)
	}
	return appendMasked(nil, payload)
}

// reset forgets what was measured.
func (s *swarm) reset() {
	s.latency.Reset()
	s.got, s.acks, s.bytes = 0, 0, 0
}

// check reports events that should not have come, or did not.
func (s *swarm) check() error {
	for i := range s.peers {
		if p := &s.peers[i]; p.next != s.seq[p.room]+1 {
			s.lost += int(s.seq[p.room] + 1 - p.next)
		}
	}
	if s.lost+s.repeated+s.strays > 0 {
		return fmt.Errorf("%d events lost, %d repeated or out of order, %d of another room", s.lost, s.repeated, s.strays)
	}
	return nil
}
