//go:build !linux

package poll

import (
	"crypto/tls"
	"net"
)

// TLSServer is tls.Server over c. Set DynamicRecordSizingDisabled in config: a
// record is a write.
func TLSServer(c net.Conn, config *tls.Config) *tls.Conn { return tls.Server(c, config) }
