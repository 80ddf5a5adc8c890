package store

import (
	"context"
	"time"
)

// SetFault makes f decide before each statement of the writer whether it fails;
// the stage "committed" comes after a COMMIT that succeeded.
func (o *Options) SetFault(f func(stage string) error) { o.fault = f }

// SetMaxPages makes a small disk of the file: pages is asked whenever the writer connects.
func (o *Options) SetMaxPages(pages func() int64) { o.maxPages = pages }

// SetMaintenance sets the time between two steps of deleting.
func (o *Options) SetMaintenance(every time.Duration) { o.maintenance = every }

// Stages names all stages that a write passes.
func Stages() []string {
	stages := []string{"committed", "connect"}
	for _, s := range statements {
		stages = append(stages, s.stage)
	}
	return stages
}

// DSN returns the URI of path without parameters.
func DSN(path string) string { return dsn(path, nil, nil) }

// Pragma returns a setting of every connection, the writer's first. The writer
// must be idle.
func (db *DB) Pragma(ctx context.Context, name string) ([]string, error) {
	links := []*link{db.writer.link}
	for range cap(db.readers.idle) {
		r := <-db.readers.idle
		defer func() { db.readers.idle <- r }()
		links = append(links, r.link)
	}
	var values []string
	for _, l := range links {
		var v string
		if err := l.conn.QueryRowContext(ctx, "PRAGMA "+name).Scan(&v); err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, nil
}

// HoldReader keeps one reader in an open read transaction until ctx ends.
func (db *DB) HoldReader(ctx context.Context, held chan<- struct{}) error {
	return db.readers.do(ctx, func(r *reader) error {
		if _, _, err := r.room(ctx, "any"); err != nil {
			return err
		}
		close(held)
		<-ctx.Done()
		return ctx.Err()
	})
}
