package hub

import (
	"math/rand/v2"
	"testing"
	"time"
)

// wheelModel is a wheel and the times that its timers were set to.
type wheelModel struct {
	wheel *wheel
	now   time.Duration
	due   map[*timer]time.Duration
}

func (m *wheelModel) set(t *timer, when time.Duration) {
	m.wheel.set(t, when)
	m.due[t] = when
}

func (m *wheelModel) stop(t *timer) {
	m.wheel.stop(t)
	delete(m.due, t)
}

// A wheel against a map of times: nothing fires early, late or twice, what is
// due in an earlier tick fires first, and the time to wait is right. Timers are
// set and stopped from within fire, beyond the horizon and into the past.
func TestWheelModel(t *testing.T) {
	base := uint64(time.Now().UnixNano())
	for seed := base; seed < base+100; seed++ {
		random := rand.New(rand.NewPCG(seed, 0))
		m := &wheelModel{now: time.Duration(random.IntN(1000)) * time.Millisecond, due: make(map[*timer]time.Duration)}
		m.wheel = newWheel(m.now)
		var timers []*timer
		for range 40 {
			c := new(conn)
			c.timer.conn = c
			timers = append(timers, &c.timer)
		}
		someTime := func() time.Duration {
			switch random.IntN(6) {
			case 0:
				return m.now - time.Duration(random.IntN(200))*time.Millisecond // the past
			case 1:
				return m.now + time.Duration(random.IntN(200))*time.Second // beyond the horizon
			}
			return m.now + time.Duration(random.IntN(3000))*time.Millisecond
		}
		var last time.Duration
		fire := func(c *conn) {
			when, set := m.due[&c.timer]
			if !set || when > m.now {
				t.Fatalf("seed %d: at %v fires a timer of %v, set %v", seed, m.now, when, set)
			}
			delete(m.due, &c.timer)
			// Those of the past fire with the next tick after they were set.
			if tick := (when + wheelTick - 1) / wheelTick; tick < last && when > last*wheelTick {
				t.Fatalf("seed %d: a timer of tick %d fires after tick %d", seed, tick, last)
			} else {
				last = max(last, tick)
			}
			switch other := timers[random.IntN(len(timers))]; random.IntN(3) {
			case 0:
				m.set(&c.timer, someTime())
			case 1:
				m.set(other, someTime())
			case 2:
				m.stop(other)
			}
		}
		for range 300 {
			switch random.IntN(4) {
			case 0:
				m.stop(timers[random.IntN(len(timers))])
			case 1, 2:
				m.set(timers[random.IntN(len(timers))], someTime())
			}
			m.checkWait(t, seed)
			m.now += time.Duration(random.IntN(400)) * time.Millisecond
			if random.IntN(30) == 0 {
				m.now += time.Duration(random.IntN(150)) * time.Second
			}
			set := make(map[*timer]time.Duration)
			for timer, when := range m.due {
				set[timer] = when
			}
			m.wheel.advance(m.now, fire)
			for timer, when := range set {
				if still, ok := m.due[timer]; ok && still == when && when <= m.now-wheelTick && timer.due <= m.wheel.now {
					t.Fatalf("seed %d: at %v a timer of %v has not fired", seed, m.now, when)
				}
			}
			if m.wheel.count != len(m.due) {
				t.Fatalf("seed %d: the wheel counts %d timers, want %d", seed, m.wheel.count, len(m.due))
			}
		}
	}
}

// checkWait: whoever sleeps so long wakes in time for the first timer.
func (m *wheelModel) checkWait(t *testing.T, seed uint64) {
	t.Helper()
	wait := m.wheel.wait(m.now)
	if len(m.due) == 0 {
		if wait >= 0 {
			t.Fatalf("seed %d: waits for %v without a timer", seed, wait)
		}
		return
	}
	first := time.Duration(1 << 62)
	for _, when := range m.due {
		first = min(first, max(when, m.now))
	}
	if wait < 0 || m.now+wait > first+2*wheelTick {
		t.Fatalf("seed %d: at %v waits for %v, though the first timer is due at %v", seed, m.now, wait, first)
	}
}
