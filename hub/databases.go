package hub

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"hub/store"
)

// databases is the table of databases. It only grows: those of the configuration,
// those that were created while running. Anybody may look, loops too.
type databases struct {
	table atomic.Pointer[map[string]*database] // a map is never changed, only replaced

	mu     sync.Mutex // held while one is opened
	closed bool       // none is opened any more; guarded by mu
}

// get returns the database of a name; nil if there is none.
func (d *databases) get(name string) *database { return d.all()[name] }

// all returns the databases by name. The map is for reading.
func (d *databases) all() map[string]*database {
	if table := d.table.Load(); table != nil {
		return *table
	}
	return nil
}

// sorted returns the names.
func (d *databases) sorted() []string { return slices.Sorted(maps.Keys(d.all())) }

func (d *databases) addLocked(db *database) {
	table := maps.Clone(d.all())
	if table == nil {
		table = make(map[string]*database)
	}
	table[db.name] = db
	d.table.Store(&table)
}

// close says that no database is opened any more, and returns those that are.
func (d *databases) close() map[string]*database {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	return d.all()
}

// maxDatabases bounds the databases that can be created while running: each has a
// goroutine, a page cache and descriptors of its own.
const maxDatabases = 256

var (
	errDatabaseExists = errors.New("the database exists")
	errDatabaseLimit  = errors.New("too many databases")
)

// openDatabases opens the databases of the configuration and those created since.
func (s *Server) openDatabases() error {
	created, err := s.registry.Databases(s.context)
	if err != nil {
		return err
	}
	s.databases.mu.Lock()
	defer s.databases.mu.Unlock()
	for _, name := range slices.Concat(s.opts.Database.Names, created) {
		if s.databases.get(name) != nil {
			continue
		}
		if err := s.openDatabaseLocked(name); err != nil {
			return fmt.Errorf("database %s: %w", name, err)
		}
	}
	return nil
}

func (s *Server) openDatabaseLocked(name string) error {
	if err := ValidDatabase(name); err != nil { // for its file's name too
		return err
	}
	db, err := openDatabase(s, name)
	if err != nil {
		return err
	}
	s.databases.addLocked(db)
	return nil
}

// createDatabase makes a database, which is served from now on and opened at every
// start; a file that is there already is used. errDatabaseExists when it is served;
// errDatabaseLimit; [store.ErrClosed] when the server stops.
func (s *Server) createDatabase(ctx context.Context, name string) error {
	d := &s.databases
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return store.ErrClosed
	case d.get(name) != nil:
		return errDatabaseExists
	case len(d.all()) >= maxDatabases:
		return errDatabaseLimit
	}
	db, err := openDatabase(s, name)
	if err != nil {
		return err
	}
	// Not before it was opened: the next start will open it.
	if err := s.registry.AddDatabase(ctx, name); err != nil {
		return errors.Join(err, db.close(s.context))
	}
	d.addLocked(db)
	s.updating.Lock()
	defer s.updating.Unlock()
	s.applyCapsLocked() // it has descriptors
	return nil
}
