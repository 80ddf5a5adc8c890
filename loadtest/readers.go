package loadtest

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"time"

	"hub/auth"
	"hub/loadtest/fleet"
	"hub/loadtest/model"
)

// roomReaders are HTTP clients of one room, each with a user of its own.
type roomReaders struct {
	fleet *fleet.Fleet
	// requests and rest are what stands before and behind the key in each client's
	// GET of a resource.
	requests, rest [][]byte
}

// roomPath is the path of a room in the HTTP API.
func roomPath(r *room) string { return "/v1/" + r.db + "/rooms/" + url.PathEscape(r.name) }

// fleetOptions are those of so many HTTP clients of the server, and the secret of
// its tokens.
func (st *stage) fleetOptions(clients int) (o fleet.Options, host, secret string, err error) {
	s, secret, err := st.clients(clients)
	if err != nil {
		return o, "", "", err
	}
	o = fleet.Options{Addr: s.addr, TLS: s.tls, Clients: clients, Stall: s.stall, Now: st.swarm.now}
	if n := len(s.sources); n > 0 {
		o.Source = func(i int) netip.Addr { return s.sources[i/s.perIP%n] }
	}
	return o, s.host, secret, nil
}

// readToken is a token for reading the resources of a room.
func readToken(secret, user string, r *room) (string, error) {
	return auth.Mint([]byte(secret), auth.Claims{
		User: user, ExpiresAt: time.Now().Add(tokenLife).Unix(), Databases: []string{r.db},
		Grants: auth.Grants{{Rooms: []string{r.name}, Allow: auth.Subscribe}},
	})
}

// newReaders makes so many of a room, without connections yet.
func (st *stage) newReaders(r *room, n int) (*roomReaders, error) {
	o, host, secret, err := st.fleetOptions(n)
	if err != nil {
		return nil, err
	}
	f := &roomReaders{}
	before := "GET " + roomPath(r) + "/resources/"
	for i := range n {
		token, err := readToken(secret, "reader-"+fmt.Sprint(i), r)
		if err != nil {
			return nil, err
		}
		request := fleet.Request(nil, "GET", roomPath(r)+"/resources/", host, token, "", nil)
		f.requests, f.rest = append(f.requests, request[:len(before)]), append(f.rest, request[len(before):])
	}
	f.fleet, err = fleet.New(o)
	return f, err
}

// snapshotDiffers reads a room's snapshot and says how it is not what the operations
// have made; empty if it is.
func (st *stage) snapshotDiffers(ctx context.Context, r *room, v *model.Verdict) (differs string, err error) {
	o, host, secret, err := st.fleetOptions(1)
	if err != nil {
		return "", err
	}
	token, err := readToken(secret, "reader", r)
	if err != nil {
		return "", err
	}
	f, err := fleet.New(o)
	if err != nil {
		return "", err
	}
	defer f.Close()
	asked := false
	err = f.Run(ctx, func(_ int, dst []byte) []byte {
		if asked {
			return dst
		}
		asked = true
		return fleet.Request(dst, "GET", roomPath(r)+"/snapshot", host, token, "", nil)
	}, func(_ int, a *fleet.Answer) { differs = r.wrongSnapshot(v, a) })
	return differs, err
}

// readAll makes the reads of a run, half of them of the stock and half of rewards
// that were answered before.
func (m *mixedRun) readAll(ctx context.Context) error {
	type reading struct {
		op    *model.Operation // nil for the stock
		least uint64           // version that was answered before
	}
	made, readings := 0, make([]reading, m.readers)
	return m.fleet.Run(ctx, func(i int, dst []byte) []byte {
		if made == m.reads {
			return dst
		}
		made++
		m.mu.Lock()
		rewarded := m.rewarded
		m.mu.Unlock()
		if made%2 == 0 && len(rewarded) > 0 {
			op := rewarded[made*7919%len(rewarded)]
			readings[i] = reading{op: op}
			return m.get(i, dst, rewardKey+op.ID)
		}
		readings[i] = reading{least: m.room.ledger.last()}
		return m.get(i, dst, stockKey)
	}, func(i int, a *fleet.Answer) {
		m.readEnd = a.At
		_ = m.latency.RecordValue(max(1, (a.At-a.Sent)/1000))
		wrong := ""
		if r := &readings[i]; r.op != nil {
			wrong = wrongReward(a, r.op)
		} else {
			wrong = wrongStock(a, r.least, uint64(m.operations))
		}
		if wrong == "" {
			m.good++
		} else {
			m.answers = append(m.answers, wrong)
		}
	})
}

// readValue reads the answer to a GET of a resource; an error says how it is none.
func readValue(a *fleet.Answer) (key, value []byte, version uint64, err error) {
	if a.Status != 200 {
		return nil, nil, 0, fmt.Errorf("a read was answered with status %d: %.200s", a.Status, a.Body)
	}
	err = eachMember(a.Body, func(name, v []byte) error {
		switch string(name) {
		case "key":
			key = unquoted(v)
		case "version":
			version, _ = digits(v)
		case "value":
			value = v
		}
		return nil
	})
	if want := fmt.Appendf(nil, `"%d"`, version); err == nil && string(a.ETag) != string(want) {
		err = fmt.Errorf("a read of version %d has ETag %s", version, a.ETag)
	}
	return key, value, version, err
}

// wrongStock says what is wrong with an answer to a read of the stock: each version
// has its amount, and none is older than one that was answered before, or newer than
// all. It is empty if nothing is.
func wrongStock(a *fleet.Answer, least, most uint64) string {
	key, value, version, err := readValue(a)
	if err != nil {
		return err.Error()
	}
	amount := ""
	_ = eachMember(value, func(name, v []byte) error {
		if string(name) == "amount" {
			amount = string(v)
		}
		return nil
	})
	if string(key) != stockKey || version < max(1, least) || version > most || amount != fmt.Sprint(mixedStock-version) {
		return fmt.Sprintf("a read of the stock, after version %d of %d, was answered with %.200s", least, most, a.Body)
	}
	return ""
}

func wrongReward(a *fleet.Answer, op *model.Operation) string {
	key, value, version, err := readValue(a)
	if err != nil {
		return err.Error()
	}
	if string(key) != rewardKey+op.ID || version != 1 || string(value) != string(rewardOf(op)) {
		return fmt.Sprintf("a read of the reward of operation %s was answered with %.200s", op.ID, a.Body)
	}
	return ""
}

// readAlone measures reads of one resource by a few clients, with nothing else going
// on.
func (m *mixedRun) readAlone(ctx context.Context) error {
	st, s := m.stage, m.stage.swarm
	f, err := st.newReaders(m.room, readClients)
	if err != nil {
		return err
	}
	defer f.fleet.Close()
	d := min(readTime, st.r.options.stream)
	st.r.progress.set(s, "mixed: reads alone", time.Now().Add(d))
	begin, last, answers := s.now(), int64(0), 0
	err = f.fleet.Run(ctx, func(i int, dst []byte) []byte {
		if s.now()-begin > int64(d) {
			return dst
		}
		return append(append(append(dst, f.requests[i]...), stockKey...), f.rest[i]...)
	}, func(_ int, a *fleet.Answer) {
		answers, last = answers+1, a.At
		if wrong := wrongStock(a, uint64(m.operations), uint64(m.operations)); wrong != "" {
			m.answers = append(m.answers, wrong)
		}
	})
	m.perSecond = float64(answers) / (float64(last-begin) / 1e9)
	return err
}
