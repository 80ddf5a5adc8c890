package ratelimit

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

// Case G21: the tables of live connections hold those alone, however many
// addresses and databases have come and gone, or were refused.
func TestSlotsForgetAddresses(t *testing.T) {
	s := NewSlots(0, 0, 1)
	here := netip.MustParseAddr("192.0.2.1")
	if _, err := s.Acquire("stays", here); err != nil {
		t.Fatal(err)
	}
	for i := range 100_000 {
		var a [16]byte
		binary.BigEndian.PutUint64(a[:], 0x20010db8<<32|uint64(i))
		slot, err := s.Acquire("comes and goes", netip.AddrFrom16(a))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Acquire("is refused", here); err == nil {
			t.Fatal("a second connection of an address that may have one")
		}
		slot.Release()
	}
	if len(s.ips) != 1 || len(s.databases) != 1 {
		t.Errorf("%d addresses and %d databases are remembered, want those of the one that stays", len(s.ips), len(s.databases))
	}
}
