package hub

import (
	"sync"

	"github.com/centrifugal/protocol"
)

// presence is who is subscribed to a room. There is no table of it: the
// subscriptions themselves are asked, each loop for its own, so nothing can be
// left behind or belong to an older connection of the same user.
type presence struct {
	mu      sync.Mutex
	left    int                             // loops that have not answered; guarded by mu
	clients map[string]*protocol.ClientInfo // nil when only numbers are asked for; guarded by mu
	bytes   int                             // of clients, about; guarded by mu
	number  int                             // guarded by mu
	users   map[string]struct{}             // guarded by mu
}

// presence calls done, on any goroutine, with the members of a room; with error
// 106 when there are more than presence_max.
func (db *database) presence(room string, done func(*presence, *protocol.Error)) {
	p := &presence{clients: make(map[string]*protocol.ClientInfo)}
	r := db.live(room)
	if r != nil && r.crowded() {
		done(nil, errLimitExceeded)
		return
	}
	p.ask(r, done)
}

// crowded says whether the room has more members than are listed.
func (r *room) crowded() bool {
	most := r.options.Load().PresenceMax
	return most > 0 && r.members.Load() > int64(most)
}

// presenceStats calls done with the numbers alone.
func (db *database) presenceStats(room string, done func(*presence, *protocol.Error)) {
	p := &presence{users: make(map[string]struct{})}
	p.ask(db.live(room), done)
}

func (p *presence) ask(r *room, done func(*presence, *protocol.Error)) {
	if r == nil {
		done(p, nil)
		return
	}
	p.left = len(r.shards)
	for i := range r.shards {
		sh := &r.shards[i]
		sh.loop.post(func() {
			if p.add(sh) {
				done(p, nil)
			}
		})
	}
}

// add takes in a loop's members and reports whether it was the last loop.
func (p *presence) add(sh *shard) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.number += len(sh.subs)
	for _, s := range sh.subs {
		if p.clients != nil {
			info := s.clientInfo()
			p.clients[info.Client] = info
			p.bytes += 2*len(info.Client) + len(info.User) + len(info.ConnInfo) + len(info.ChanInfo) + 64
		} else {
			p.users[s.conn.session.user] = struct{}{}
		}
	}
	p.left--
	return p.left == 0
}

func (p *presence) stats() *protocol.PresenceStatsResult {
	return &protocol.PresenceStatsResult{NumClients: uint32(p.number), NumUsers: uint32(len(p.users))}
}
