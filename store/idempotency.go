package store

import (
	"bytes"
	"crypto/sha256"

	"hub/store/document"
)

// contentHash stands for what data says: insignificant space makes no other content
// of it. Data that is no such document stands for its bytes.
func contentHash(data []byte) []byte {
	if bytes.ContainsAny(data, " \t\r\n") {
		if compact, err := document.Compact(data); err == nil {
			data = compact
		}
	}
	sum := sha256.Sum256(data)
	return sum[:]
}

// claim records result under the id of p, or finds the earlier result that the
// id stands for. Ids are nearly always new, so it inserts before it looks.
func (w *writer) claim(r *room, p *publish, result Result) (earlier Result, found bool, err error) {
	record := []any{r.id, p.Caller, p.ID, p.hash, int64(result.Offset), result.Epoch, w.now}
	inserted, err := w.execResult(insertID, record...)
	if err != nil {
		return Result{}, false, err
	}
	if n, err := inserted.RowsAffected(); n == 1 || err != nil {
		return Result{}, false, err
	}
	known, found, err := w.recall(r, p.Caller, p.ID)
	switch {
	case err != nil:
		return Result{}, false, err
	case !found:
		return Result{}, false, w.exec(replaceID, append(record, nil)...)
	case known.changes != nil || !bytes.Equal(known.hash, p.hash):
		return Result{}, true, ErrIDReused
	}
	return known.Result, true, nil
}

// record is what an idempotency id stands for.
type record struct {
	Result
	hash    []byte // of what was asked
	changes []byte // of an operation, as in its event; nil for a publication
}

// recall returns what the id of a caller stands for; found is false when it is
// free, or its time is over.
func (w *writer) recall(r *room, caller, id string) (known record, found bool, err error) {
	var offset, time int64
	found, err = w.query(findID, []any{r.id, caller, id}, &known.hash, &offset, &known.Epoch, &time, &known.changes)
	if err != nil || !found || w.options.forgotten(time, w.now) {
		return record{}, false, err
	}
	known.Offset, known.Replayed = uint64(offset), true
	return known, true, nil
}

// forgotten reports whether the time of an id that was recorded at time is over at
// now, both in Unix milliseconds.
func (o *Options) forgotten(time, now int64) bool {
	return time <= now-o.IdempotencyTTL.Milliseconds()
}
