package ratelimit_test

import (
	"net/netip"
	"strings"
	"testing"

	"hub/ratelimit"
)

// Case G19.
func TestClientAddr(t *testing.T) {
	trusted, err := ratelimit.ParseProxies([]string{"10.0.0.0/8", "192.0.2.7", "2001:db8:1::/48"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name      string
		remote    string
		forwarded []string
		want      string
	}{
		{"no header", "203.0.113.5", nil, "203.0.113.5"},
		{"direct client names somebody", "203.0.113.5", []string{"198.51.100.1"}, "203.0.113.5"},
		{"direct client names a proxy", "203.0.113.5", []string{"198.51.100.1, 10.0.0.1"}, "203.0.113.5"},
		{"proxy without header", "10.0.0.1", nil, "10.0.0.1"},
		{"proxy with empty header", "10.0.0.1", []string{""}, "10.0.0.1"},
		{"one proxy", "10.0.0.1", []string{"198.51.100.1"}, "198.51.100.1"},
		{"client wrote the left part", "10.0.0.1", []string{"1.2.3.4, 198.51.100.1"}, "198.51.100.1"},
		{"client wrote a proxy to the left", "10.0.0.1", []string{"10.9.9.9,198.51.100.1"}, "198.51.100.1"},
		{"two proxies", "10.0.0.1", []string{"1.2.3.4, 198.51.100.1, 192.0.2.7"}, "198.51.100.1"},
		{"two proxies, two lines", "10.0.0.1", []string{"1.2.3.4, 198.51.100.1", "192.0.2.7"}, "198.51.100.1"},
		{"client wrote the first line", "10.0.0.1", []string{"1.2.3.4", "198.51.100.1"}, "198.51.100.1"},
		{"only proxies", "10.0.0.1", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"neighbour of a trusted address", "192.0.2.8", []string{"198.51.100.1"}, "192.0.2.8"},
		{"garbage next to the proxy", "10.0.0.1", []string{"198.51.100.1, unknown"}, "10.0.0.1"},
		{"garbage behind the second proxy", "10.0.0.1", []string{"198.51.100.1, , 10.0.0.2"}, "10.0.0.2"},
		{"garbage behind the client", "10.0.0.1", []string{"<script>, 198.51.100.1"}, "198.51.100.1"},
		{"port", "10.0.0.1", []string{"198.51.100.1:5555"}, "198.51.100.1"},
		{"IPv6", "10.0.0.1", []string{"2001:db8::5"}, "2001:db8::5"},
		{"IPv6 in brackets", "10.0.0.1", []string{"[2001:db8::5]"}, "2001:db8::5"},
		{"IPv6 with port", "10.0.0.1", []string{"[2001:db8::5]:99"}, "2001:db8::5"},
		{"IPv6 proxy", "2001:db8:1::9", []string{"198.51.100.1"}, "198.51.100.1"},
		{"mapped remote", "::ffff:10.0.0.1", []string{"198.51.100.1"}, "198.51.100.1"},
		{"mapped client", "10.0.0.1", []string{"::ffff:198.51.100.1"}, "198.51.100.1"},
		{"mapped and not trusted", "::ffff:203.0.113.5", []string{"198.51.100.1"}, "203.0.113.5"},
		{"zone", "fe80::1%eth0", nil, "fe80::1"},
		{"tabs", "10.0.0.1", []string{"\t198.51.100.1\t"}, "198.51.100.1"},
	} {
		if got := ratelimit.ClientAddr(addr(tc.remote), tc.forwarded, trusted); got != addr(tc.want) {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
		if got := ratelimit.ClientAddr(addr(tc.remote), tc.forwarded, ratelimit.Proxies{}); got != addr(tc.remote).Unmap().WithZone("") {
			t.Errorf("%s, no proxies configured: got %v", tc.name, got)
		}
	}
	if got := ratelimit.ClientAddr(netip.Addr{}, []string{"198.51.100.1"}, trusted); got.IsValid() {
		t.Errorf("no remote address: got %v", got)
	}
}

func TestParseProxies(t *testing.T) {
	for _, s := range []string{"", "proxy.example", "10.0.0", "10.0.0.0/33", "10.0.0.1:80", "0.0.0.0/0", "::/0", "10.0.0.0/", "fe80::1%eth0", "::ffff:10.0.0.0/104", " 10.0.0.1"} {
		if _, err := ratelimit.ParseProxies([]string{"10.0.0.1", s}); err == nil {
			t.Errorf("ParseProxies(%q) accepted it", s)
		}
	}
	p, err := ratelimit.ParseProxies([]string{"10.1.2.3/8", "::ffff:192.0.2.1"})
	if err != nil || !p.Trusts(addr("10.9.9.9")) || !p.Trusts(addr("192.0.2.1")) || p.Trusts(addr("11.0.0.1")) {
		t.Errorf("host bits and mapped addresses: %v", err)
	}
}

// FuzzClientAddr: whatever a direct client sends, it counts under its own
// address; behind a proxy a client cannot choose what the proxy appended.
func FuzzClientAddr(f *testing.F) {
	trusted, err := ratelimit.ParseProxies([]string{"10.0.0.0/8"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("198.51.100.1, 10.0.0.1", ",,")
	f.Add("[::1", "\"1.2.3.4\"")
	f.Fuzz(func(t *testing.T, one, two string) {
		direct := addr("203.0.113.5")
		if got := ratelimit.ClientAddr(direct, []string{one, two}, trusted); got != direct {
			t.Fatalf("a direct client counts as %v", got)
		}
		appended := strings.Join([]string{one, two, "198.51.100.77"}, ",")
		if got := ratelimit.ClientAddr(addr("10.0.0.1"), []string{two, appended}, trusted); got != addr("198.51.100.77") {
			t.Fatalf("a client behind a proxy counts as %v", got)
		}
	})
}
