package store

import (
	"context"
	"database/sql/driver"
	"fmt"
	"log"
	"time"

	"modernc.org/sqlite"
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
		if _, _, err := r.room("any"); err != nil {
			return err
		}
		close(held)
		<-ctx.Done()
		return ctx.Err()
	})
}

// CreateOld makes a database file of an old schema version, and runs
// script on it.
func CreateOld(ctx context.Context, path string, version int, script string) error {
	if err := create(path); err != nil {
		return err
	}
	l, err := connect(ctx, dsn(path, nil, setupPragmas), setupPragmas)
	if err != nil {
		return err
	}
	defer l.close()
	if err := migrate(ctx, l.conn, migrations[:version]); err != nil {
		return err
	}
	_, err = l.conn.ExecContext(ctx, "PRAGMA journal_mode=WAL;"+script)
	return err
}

// MigrateUntilKilled begins to migrate the file, says so when each statement of the
// second step has run, and never comes to its COMMIT.
func MigrateUntilKilled(path string) {
	err := sqlite.RegisterScalarFunction("hang", 0, func(*sqlite.FunctionContext, []driver.Value) (driver.Value, error) {
		fmt.Println("migrating")
		select {}
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	l, err := connect(ctx, dsn(path, nil, setupPragmas), setupPragmas)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(migrate(ctx, l.conn, []string{migrations[0], migrations[1] + ";PRAGMA user_version=2;SELECT hang()"}))
}
