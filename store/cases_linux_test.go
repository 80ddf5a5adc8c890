package store

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Case G34: a database on a network file system is opened with a loud word, never
// silently. The one of the test is taken for such.
func TestNetworkFilesystemIsTold(t *testing.T) {
	dir := t.TempDir()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	kind := uint32(st.Type)
	if name, was := networkFilesystems[kind]; was {
		t.Cleanup(func() { networkFilesystems[kind] = name })
	}
	for _, name := range []string{"", "TESTFS"} {
		if delete(networkFilesystems, kind); name != "" {
			networkFilesystems[kind] = name
			t.Cleanup(func() { delete(networkFilesystems, kind) })
		}
		var log bytes.Buffer
		db, err := Open(Options{Path: filepath.Join(dir, "a.db"), Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		text := log.String()
		told := strings.Contains(text, "level=WARN") && strings.Contains(text, name+" file system") && strings.Contains(text, dir)
		if told != (name != "") {
			t.Errorf("file system %q: logged %s", name, text)
		}
	}
	for _, kind := range []uint32{unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.V9FS_MAGIC, unix.FUSE_SUPER_MAGIC} {
		if networkFilesystems[kind] == "" {
			t.Errorf("file system %#x is not known", kind)
		}
	}
}
