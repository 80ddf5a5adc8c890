package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/centrifugal/centrifuge-go"
)

// makeCertificate writes a self-signed certificate of 127.0.0.1 and its key.
func makeCertificate(certFile, keyFile string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "hub test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600); err != nil {
		return err
	}
	return os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600)
}

// startTLSServer starts a server with a certificate and returns what trusts it.
func startTLSServer(t *testing.T, settings ...string) (*sdkServer, *tls.Config) {
	t.Helper()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if err := makeCertificate(cert, key); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	trust := &tls.Config{RootCAs: x509.NewCertPool()}
	trust.RootCAs.AppendCertsFromPEM(text)
	return startSDKServer(t, append(settings, fmt.Sprintf("tls_cert = %q", cert), fmt.Sprintf("tls_key = %q", key))...), trust
}

// callTLS makes one HTTPS request and returns status and body.
func callTLS(t *testing.T, trust *tls.Config, method, url, body string, header map[string]string) (int, string) {
	t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range header {
		r.Header.Set(name, value)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: trust, DisableKeepAlives: true}, Timeout: patience}
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusSwitchingProtocols {
		return res.StatusCode, ""
	}
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(answer)
}

// TestTLS: the same server behind a certificate.
func TestTLS(t *testing.T) {
	s, trust := startTLSServer(t)
	url := strings.Replace(s.url(""), "ws://", "wss://", 1)
	call := func(method, path, body string, header map[string]string) (int, string) {
		t.Helper()
		return callTLS(t, trust, method, "https://"+s.addr+path, body, header)
	}
	publish := func(room, data string) {
		t.Helper()
		status, answer := call(http.MethodPost, "/api/publish", `{"channel":"`+room+`","data":`+data+`}`, map[string]string{"X-API-Key": sdkAPIKey})
		if status != http.StatusOK || !strings.Contains(answer, `"offset"`) {
			t.Fatalf("publish: status %d, %s", status, answer)
		}
	}
	for path, want := range map[string]int{"/readyz": 200, "/healthz": 200, "/nothing": 404} {
		if status, answer := call(http.MethodGet, path, "", nil); status != want {
			t.Errorf("%s: status %d %s, want %d", path, status, answer, want)
		}
	}
	if status, answer := call(http.MethodPost, "/api/info", "{}", map[string]string{"X-API-Key": "wrong"}); status != http.StatusUnauthorized {
		t.Errorf("a wrong key: status %d %s, want 401", status, answer)
	}

	// A page's own host is that of https.
	for origin, want := range map[string]int{"https://" + s.addr: 101, "http://" + s.addr: 403, "https://evil.test": 403} {
		status, _ := call(http.MethodGet, "/connection/websocket", "", map[string]string{"Connection": "Upgrade", "Upgrade": "websocket",
			"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Origin": origin})
		if status != want {
			t.Errorf("origin %s: status %d, want %d", origin, status, want)
		}
	}
	refuseOldAndPlain(t, s.addr, trust)

	forProtocols(t, func(t *testing.T, protocol string) {
		room := "room:tls-" + protocol
		g := newGoClient(t, protocol, url, centrifuge.Config{Token: s.token("u"), TLSConfig: trust})
		g.connect()
		sub := g.sub(room, centrifuge.SubscriptionConfig{Recoverable: true})
		next := func(want string) {
			t.Helper()
			if p := sub.next(); string(p.Data) != want {
				t.Errorf("got %.40s, want %.40s", p.Data, want)
			}
		}
		for _, want := range samples {
			if _, err := sub.Publish(timeout(t), []byte(want)); err != nil {
				t.Fatalf("publish %.40s: %v", want, err)
			}
			next(want)
		}
		publish(room, `"by the server"`)
		next(`"by the server"`)
		// Over a restart, which closes with 3001, it resumes.
		s.stop()
		s.start()
		publish(room, `"after a restart"`)
		next(`"after a restart"`)
		if e := receive(t, sub.subscribed, "second subscription"); !e.WasRecovering || !e.Recovered {
			t.Errorf("subscribed with %+v, want recovered", e)
		}
	})
	s.healthy()
	s.stop()
}

// A TLS handshake has the deadline of every other, however slowly it is sent, and
// holds up nobody.
func TestSlowTLSHandshake(t *testing.T) {
	s, trust := startTLSServer(t, `handshake_timeout = "1s"`)
	var all sync.WaitGroup
	for _, begin := range []string{"", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"} {
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		all.Go(func() {
			_ = c.SetDeadline(time.Now().Add(patience))
			for i, start := 0, time.Now(); ; i++ {
				if i < len(begin) {
					_, _ = c.Write([]byte{begin[i]})
				}
				_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond)) // a byte at a time
				var timeout net.Error
				if _, err := c.Read(make([]byte, 64)); !errors.As(err, &timeout) || !timeout.Timeout() {
					break // closed
				}
				if time.Since(start) > 5*time.Second {
					t.Errorf("%q is waited for", begin)
					break
				}
			}
		})
	}
	for range 5 {
		c, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", s.addr, trust)
		if err != nil {
			t.Fatalf("beside slow handshakes: %v", err)
		}
		_ = c.Close()
	}
	all.Wait()
	s.healthy()
}

// refuseOldAndPlain checks that what is not TLS 1.2 or newer gets nowhere.
func refuseOldAndPlain(t *testing.T, addr string, trust *tls.Config) {
	t.Helper()
	old := trust.Clone()
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	if c, err := tls.Dial("tcp", addr, old); err == nil {
		_ = c.Close()
		t.Error("TLS 1.1 was accepted")
	}
	if c, err := tls.Dial("tcp", addr, &tls.Config{}); err == nil {
		_ = c.Close()
		t.Error("a client that does not trust the certificate got in")
	}
	res, err := apiClient.Get("http://" + addr + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusBadRequest {
		t.Errorf("without TLS: status %d, want 400", res.StatusCode)
	}
}
