package loadtest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"hub/loadtest/report"
)

// Values of stage.early.
const (
	interrupted = "interrupted"
	serverDied  = "the server died"
)

// early says why a scenario ended before its time, empty if err is of another kind.
func early(user context.Context, err error) string {
	switch {
	case err == nil:
		return ""
	case user.Err() != nil:
		return interrupted
	case errors.Is(err, errDied):
		return serverDied
	}
	return ""
}

// add sums what lasts over several swarms.
func (t *tally) add(u *tally) {
	t.ended += u.ended
	t.recovered += u.recovered
	t.misattributed += u.misattributed
	t.misplaced += u.misplaced
	t.malformed += u.malformed
	t.unrecovered += u.unrecovered
	t.wrongAcknowledgement += u.wrongAcknowledgement
}

// checkTraffic judges what the clients saw.
func (st *stage) checkTraffic() {
	why := ""
	if len(st.problems) > 0 {
		why = "; " + strings.Join(st.problems, "; ")
	}
	f, t := st.faults, &st.tally
	ended := t.ended - st.expectedEnds
	if st.asked == 0 {
		st.notChecked("ready = asked", "no connection was asked for")
	} else {
		st.arrived("ready = asked", st.ready == st.asked && ended <= 0, fmt.Sprintf("%d of %d connections", st.ready, st.asked), why)
	}
	fault := func(name string, n int64) { st.check(name, n == 0, "%d%s", n, because(n > 0, why)) }
	if st.given == 0 && st.name != "connect" {
		for _, name := range []string{"lost = 0", "duplicate = 0", "out of order = 0", "cross-room = 0", "cross-database = 0"} {
			st.notChecked(name, "nothing was published")
		}
		return
	}
	if st.given > 0 {
		st.arrived("lost = 0", f.Lost == 0, strconv.FormatInt(f.Lost, 10), why)
		fault("duplicate = 0", f.Duplicate)
		fault("out of order = 0", f.OutOfOrder)
		fault("cross-room = 0", f.CrossRoom)
		if st.crossDatabase {
			fault("cross-database = 0", f.CrossDatabase)
		} else {
			st.notChecked("cross-database = 0", "there was one database")
		}
		fault("events say their true place and publisher", t.misattributed+t.misplaced+t.malformed)
		missing := st.given - st.acked
		acknowledged := fmt.Sprintf("%d of %d", st.acked, st.given)
		if t.wrongAcknowledgement > 0 {
			st.check("acknowledged = published", false, "%s%s", acknowledged, why)
		} else {
			st.arrived("acknowledged = published", missing == 0, acknowledged, why)
		}
	}
	if st.dropped > 0 || t.unrecovered > 0 {
		const recovered, detail = "every position recovered", "%d recovered, %d not%s"
		if t.unrecovered > 0 {
			st.check(recovered, false, detail, t.recovered, t.unrecovered, why)
		} else {
			st.arrived(recovered, t.recovered >= st.dropped, fmt.Sprintf("%d recovered, %d not", t.recovered, max(0, st.dropped-t.recovered)), why)
		}
	}
}

// arrived makes a check of what has all arrived; why is told when it has not. What
// was still on its way when the scenario was cut short is neither there nor missing.
func (st *stage) arrived(name string, ok bool, found, why string) {
	if ok || st.early == "" {
		st.check(name, ok, "%s%s", found, because(!ok, why))
		return
	}
	st.notChecked(name, fmt.Sprintf("%s with some on their way (%s)", st.early, found))
}

func because(failed bool, why string) string {
	if !failed {
		return ""
	}
	return why
}

// connectionsLeft asks the server how many connections it still has, waiting for
// their closes to be handled. It is an error where some may be those of others.
func (st *stage) connectionsLeft(ctx context.Context) (int, error) {
	switch {
	case st.server != nil && st.server.process == nil:
		return 0, errors.New("the server does not run")
	case st.othersErr != nil:
		return 0, st.othersErr
	case st.others > 0:
		return 0, fmt.Errorf("the server had %d connections of others", st.others)
	}
	deadline := time.Now().Add(st.r.options.stall)
	for {
		left, err := st.source.connections(ctx)
		if err != nil || left == 0 || time.Now().After(deadline) {
			return left, err
		}
		if err := st.pause(ctx, 10*time.Millisecond, "wait for closes"); err != nil {
			return left, err
		}
	}
}

func (st *stage) check(name string, ok bool, format string, args ...any) {
	result := report.Passed
	if !ok {
		result = report.Failed
	}
	st.addCheck(name, result, fmt.Sprintf(format, args...))
}

func (st *stage) notChecked(name, why string) { st.addCheck(name, report.NotChecked, why) }

// fail notes an error that ended something; an interruption is no failure.
func (st *stage) fail(name string, err error) {
	if st.early == interrupted {
		st.notChecked(name, interrupted)
		return
	}
	st.addCheck(name, report.Failed, err.Error())
}

func (st *stage) addCheck(name string, result report.Result, detail string) {
	st.r.report.Checks = append(st.r.report.Checks, report.Check{Scenario: st.name, Name: name, Result: result, Detail: strings.TrimSpace(detail)})
}

// checkFiles compares the databases with what was acknowledged.
func (st *stage) checkFiles() {
	if st.r.options.before != nil {
		st.r.options.before(st.server.dataDir(), st.databases)
	}
	var damaged, different []string
	rooms, compared := 0, uint64(0)
	for _, db := range st.server.databases {
		integrity, events, n, err := checkDatabase(context.Background(), st.server.database(db), db, st.databases[db], retention)
		if err != nil {
			events = append(events, err.Error())
		}
		damaged, different = append(damaged, integrity...), append(different, events...)
		rooms += len(st.databases[db])
		compared += n
	}
	st.check("integrity_check of every database", len(damaged) == 0, "%s", orText(strings.Join(damaged, "; "), fmt.Sprintf("ok, %d databases", len(st.server.databases))))
	st.check("stored events = acknowledged events", len(different) == 0, "%s",
		orText(strings.Join(different[:min(len(different), maxExamples)], "; "), fmt.Sprintf("%d acknowledged in %d rooms; the %d that are kept are contiguous and as sent", st.acked, rooms, compared)))
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func orText(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
