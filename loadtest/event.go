package loadtest

import (
	"bytes"
	"strings"
)

// An event's data is a JSON object of a fixed size. It says by itself where it
// belongs, so that whoever receives it can tell whether it should have come:
//
//	{"seq":"0000000001","room":"000007","by":"000042","t":"0000000123456789","db":"default","d":"xxx"}
//
// seq counts the events of the room from 1, by is the publisher's number among
// the connections, t the intended send time in nanoseconds of the run's clock.
type event struct {
	seq  uint64
	room int
	by   int
	due  int64
}

// Places of the values in an event's data.
const (
	seqAt, seqDigits   = len(`{"seq":"`), 10
	roomAt, roomDigits = seqAt + seqDigits + len(`","room":"`), 6
	byAt, byDigits     = roomAt + roomDigits + len(`","by":"`), 6
	dueAt, dueDigits   = byAt + byDigits + len(`","t":"`), 16
	dbAt               = dueAt + dueDigits + len(`","db":"`)
)

const (
	fillHead  = `","d":"`
	eventTail = `"}`
	// minSize leaves room for a database's name of 30 bytes.
	minSize = dbAt + 30 + len(fillHead) + len(eventTail)
	maxSize = 32 << 10
)

// filler is what d consists of.
var filler = strings.Repeat("x", maxSize)

// appendEvent appends the data of an event, of size bytes altogether.
func appendEvent(dst []byte, e event, db string, size int) []byte {
	begin := len(dst)
	dst = appendDigits(append(dst, `{"seq":"`...), e.seq, seqDigits)
	dst = appendDigits(append(dst, `","room":"`...), uint64(e.room), roomDigits)
	dst = appendDigits(append(dst, `","by":"`...), uint64(e.by), byDigits)
	dst = appendDigits(append(dst, `","t":"`...), uint64(max(e.due, 0)), dueDigits)
	dst = append(append(append(dst, `","db":"`...), db...), fillHead...)
	dst = append(dst, filler[:max(0, size-(len(dst)-begin)-len(eventTail))]...)
	return append(dst, eventTail...)
}

// parseEvent reads the data of an event and the name of its database, which is
// part of data. It reports false for anything that appendEvent does not write,
// size and filler excepted: see intact.
func parseEvent(data []byte) (e event, db []byte, ok bool) {
	if len(data) < dbAt+len(fillHead)+len(eventTail) ||
		string(data[:seqAt]) != `{"seq":"` ||
		string(data[seqAt+seqDigits:roomAt]) != `","room":"` ||
		string(data[roomAt+roomDigits:byAt]) != `","by":"` ||
		string(data[byAt+byDigits:dueAt]) != `","t":"` ||
		string(data[dueAt+dueDigits:dbAt]) != `","db":"` {
		return e, nil, false
	}
	seq, ok1 := digits(data[seqAt : seqAt+seqDigits])
	room, ok2 := digits(data[roomAt : roomAt+roomDigits])
	by, ok3 := digits(data[byAt : byAt+byDigits])
	due, ok4 := digits(data[dueAt : dueAt+dueDigits])
	end := bytes.IndexByte(data[dbAt:], '"')
	if !ok1 || !ok2 || !ok3 || !ok4 || end < 0 {
		return e, nil, false
	}
	db, rest := data[dbAt:dbAt+end], data[dbAt+end:]
	if len(rest) < len(fillHead)+len(eventTail) || string(rest[:len(fillHead)]) != fillHead || !bytes.HasSuffix(rest, []byte(eventTail)) {
		return e, nil, false
	}
	return event{seq: seq, room: int(room), by: int(by), due: int64(due)}, db, true
}

// intact reports whether data, which parseEvent has read, has the size and the
// filler that it was given.
func intact(data, db []byte, size int) bool {
	if len(data) != size {
		return false
	}
	fill := data[dbAt+len(db)+len(fillHead) : size-len(eventTail)]
	return string(fill) == filler[:len(fill)]
}

func appendDigits(dst []byte, v uint64, n int) []byte {
	for range n {
		dst = append(dst, '0')
	}
	for i := len(dst) - 1; v > 0 && n > 0; i, n = i-1, n-1 {
		dst[i] = byte('0' + v%10)
		v /= 10
	}
	return dst
}

func digits(text []byte) (v uint64, ok bool) {
	if len(text) == 0 || len(text) > 19 {
		return 0, false
	}
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, false
		}
		v = 10*v + uint64(c-'0')
	}
	return v, true
}
