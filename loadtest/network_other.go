//go:build !linux

package loadtest

import "crypto/tls"

// newNetwork returns the network of a shard.
func newNetwork(sh *shard, config *tls.Config) (network, error) {
	return newPortable(sh, config), nil
}
