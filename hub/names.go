package hub

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxRoomName is the longest room name in bytes (DESIGN.md section 6).
const maxRoomName = 255

var (
	errRoomLength  = errors.New("room name must have 1 to 255 bytes")
	errRoomUTF8    = errors.New("room name must be valid UTF-8")
	errRoomControl = errors.New("room name must not contain control characters")
	errRoomHash    = errors.New("room name must not contain #")
	errRoomDollar  = errors.New("room name must not begin with $")
)

// ValidRoom returns what is wrong with the name of a room, or nil: 1-255 bytes
// of UTF-8, no control character, no "#" and no leading "$", to which Centrifugo
// gives a meaning. It is the one check for sockets, HTTP (after decoding) and
// tokens, and it does not allocate.
func ValidRoom(name string) error {
	switch {
	case name == "" || len(name) > maxRoomName:
		return errRoomLength
	case name[0] == '$':
		return errRoomDollar
	case strings.IndexByte(name, '#') >= 0:
		return errRoomHash
	case !utf8.ValidString(name):
		return errRoomUTF8
	}
	for _, r := range name {
		if unicode.IsControl(r) {
			return errRoomControl
		}
	}
	return nil
}

// A database's name is part of a file name and of a path, so it comes from an
// allowlist of characters in one case (case G47); "_" at its start is ours.
var (
	databaseName  = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)
	namespaceName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)
)

// ValidDatabase returns what is wrong with the name of a database, or nil.
func ValidDatabase(name string) error {
	if !databaseName.MatchString(name) {
		return fmt.Errorf("database name must match %s, got %.80q", databaseName, name)
	}
	return nil
}
