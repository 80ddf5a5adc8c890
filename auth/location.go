package auth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// fetchTimeout bounds one look at a key set, connecting and reading included.
const fetchTimeout = 10 * time.Second

// maxRedirects are followed, all within the set's own origin.
const maxRedirects = 3

// location is where a key set is.
type location struct {
	path string   // of a file, or
	url  *url.URL // of a server
}

// parseLocation reads auth.jwks.
func parseLocation(s string) (location, error) {
	if strings.HasPrefix(strings.TrimSpace(s), "{") {
		return location{}, errors.New(`must be the URL or the path of a key set, not its text: write the path without "file:"`)
	}
	if !strings.Contains(s, "://") {
		return location{path: s}, nil
	}
	u, err := url.Parse(s)
	if err != nil {
		return location{}, errors.New("is not a URL")
	}
	at, ok := originOf(u)
	switch {
	case !ok:
		return location{}, errors.New("is not a URL with a plain host name")
	case u.User != nil || u.Fragment != "":
		return location{}, errors.New("must be a URL without user and fragment")
	case u.Scheme != "https" && !(u.Scheme == "http" && at.isLoopback()):
		return location{}, errors.New("must begin with https:// (http:// only for this machine)")
	}
	return location{url: u}, nil
}

// originOf returns scheme, host and port of a URL.
func originOf(u *url.URL) (origin, bool) { return parseOrigin(u.Scheme+"://"+u.Host, false) }

// String returns the location as the log shows it: without the query, which
// may hold a key.
func (l location) String() string {
	if l.url == nil {
		return l.path
	}
	return l.url.Scheme + "://" + l.url.Host + l.url.EscapedPath()
}

// read returns the bytes of the set, at most maxSet. transport is nil for
// [newTransport].
func (l location) read(ctx context.Context, transport http.RoundTripper) ([]byte, error) {
	if l.url == nil {
		return l.readFile()
	}
	return l.get(ctx, transport)
}

// readFile refuses what is no regular file: opening a pipe could wait for ever.
func (l location) readFile() ([]byte, error) {
	info, err := os.Stat(l.path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("is not a file")
	}
	f, err := os.Open(l.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readSet(f)
}

func (l location) get(ctx context.Context, transport http.RoundTripper) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.url.String(), nil)
	if err != nil {
		return nil, withoutURL(err)
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	req.Header.Set("User-Agent", "hub")
	if transport == nil {
		transport = newTransport()
	}
	client := http.Client{Transport: transport, CheckRedirect: l.checkRedirect}
	resp, err := client.Do(req)
	if err != nil {
		return nil, withoutURL(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the server answers with status %d", resp.StatusCode)
	}
	return readSet(resp.Body)
}

// newTransport makes a transport for one look: a connection that is used every
// few minutes is not worth keeping. The system's roots decide whom to trust;
// proxies of the environment are not used.
func newTransport() http.RoundTripper {
	return &http.Transport{
		DialContext:            (&net.Dialer{Timeout: fetchTimeout / 2}).DialContext,
		DisableKeepAlives:      true,
		ForceAttemptHTTP2:      true,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// checkRedirect keeps to the origin that the operator named.
func (l location) checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return fmt.Errorf("the server redirects more than %d times", maxRedirects)
	}
	home, _ := originOf(l.url)
	if to, ok := originOf(req.URL); !ok || to != home {
		return errors.New("the server redirects to another origin")
	}
	return nil
}

// withoutURL takes the URL off an error of net/http: its query may hold a key.
func withoutURL(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

func readSet(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxSet+1))
	if err == nil && len(b) > maxSet {
		err = fmt.Errorf("is larger than %d bytes", maxSet)
	}
	return b, err
}
