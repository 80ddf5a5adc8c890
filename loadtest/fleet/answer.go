package fleet

import (
	"bytes"
	"fmt"
)

const (
	maxHead = 16 << 10
	maxBody = 32 << 20 // twice what a snapshot has at most
)

// parse reads the answer that data begins with (RFC 9112 section 2.1) and returns
// its length, 0 while it is not complete. A body needs a Content-Length: our server
// gives one to every answer.
func parse(data []byte, a *Answer) (int, error) {
	end := bytes.Index(data, []byte("\r\n\r\n"))
	if end < 0 {
		if len(data) > maxHead {
			return 0, fmt.Errorf("%w: a head of more than %d bytes", ErrAnswer, maxHead)
		}
		return 0, nil
	}
	head, sent := data[:end+2], a.Sent
	*a = Answer{Sent: sent}
	line := cutLine(&head)
	if len(line) < len("HTTP/1.1 200") || string(line[:7]) != "HTTP/1." {
		return 0, fmt.Errorf("%w: it begins with %.40q", ErrAnswer, line)
	}
	status, ok := number(line[9:12])
	if !ok || line[8] != ' ' || status < 100 {
		return 0, fmt.Errorf("%w: it begins with %.40q", ErrAnswer, line)
	}
	a.Status = status
	length := -1
	for len(head) > 0 {
		name, value, ok := bytes.Cut(cutLine(&head), []byte(":"))
		if !ok {
			return 0, fmt.Errorf("%w: a header line without a colon", ErrAnswer)
		}
		if err := a.field(name, bytes.TrimSpace(value), &length); err != nil {
			return 0, err
		}
	}
	body := end + len("\r\n\r\n")
	switch {
	case status == 101 || status == 204 || status == 304:
		return body, nil
	case status < 200:
		n, err := parse(data[body:], a) // behind an interim answer
		if n > 0 {
			n += body
		}
		return n, err
	case length < 0:
		return 0, fmt.Errorf("%w: status %d without Content-Length", ErrAnswer, status)
	case length > maxBody:
		return 0, fmt.Errorf("%w: a body of %d bytes", ErrAnswer, length)
	case len(data) < body+length:
		return 0, nil
	}
	a.Body = data[body : body+length]
	return body + length, nil
}

// field takes one header field.
func (a *Answer) field(name, value []byte, length *int) error {
	switch len(name) { // most fields are none of ours
	case len("ETag"):
		if is(name, "etag") {
			a.ETag = value
		}
	case len("Connection"):
		if is(name, "connection") {
			a.closes = is(value, "close")
		}
	case len("Retry-After"):
		if is(name, "retry-after") {
			a.RetryAfter = value
		}
	case len("Content-Type"):
		if is(name, "content-type") {
			a.ContentType = value
		}
	case len("Content-Length"):
		if is(name, "content-length") {
			n, ok := number(value)
			if !ok {
				return fmt.Errorf("%w: Content-Length %.40q", ErrAnswer, value)
			}
			*length = n
		}
	}
	return nil
}

func cutLine(head *[]byte) []byte {
	line, rest, _ := bytes.Cut(*head, []byte("\r\n"))
	*head = rest
	return line
}

// is compares with a text in lower case.
func is(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

func number(text []byte) (n int, ok bool) {
	if len(text) == 0 || len(text) > 9 {
		return 0, false
	}
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return n, true
}
