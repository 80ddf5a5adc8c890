package store

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// networkFilesystems are those whose locks or shared memory SQLite's WAL cannot
// trust (sqlite.org/wal.html: all processes on one host). Numbers: statfs(2).
var networkFilesystems = map[uint32]string{
	unix.V9FS_MAGIC:       "9p",
	unix.NFS_SUPER_MAGIC:  "NFS",
	unix.SMB_SUPER_MAGIC:  "SMB",
	unix.CIFS_SUPER_MAGIC: "CIFS",
	unix.SMB2_SUPER_MAGIC: "SMB2",
	unix.AFS_SUPER_MAGIC:  "AFS",
	unix.CODA_SUPER_MAGIC: "Coda",
	unix.CEPH_SUPER_MAGIC: "Ceph",
	unix.FUSE_SUPER_MAGIC: "FUSE",
	0x0bd00bd0:            "Lustre",
	0x47504653:            "GPFS",
}

// CheckFilesystem returns a warning when dir lies on a network or virtual file
// system, where SQLite's locks and shared memory may not work, and "" otherwise
// or when that cannot be told.
func CheckFilesystem(dir string) string {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return ""
	}
	name, ok := networkFilesystems[uint32(st.Type)]
	if !ok {
		return ""
	}
	return fmt.Sprintf("%s is on a %s file system: SQLite databases there may be corrupted, use a local disk", dir, name)
}
