package hub

import (
	"encoding/json"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/centrifugal/protocol"

	"hub/store"
)

// apiHistoryBytes bounds a history answer of the server API.
const apiHistoryBytes = 8 << 20

type apiChannelRequest struct {
	Channel string `json:"channel"`
}

type apiClientInfo struct {
	User     string          `json:"user"`
	Client   string          `json:"client"`
	ConnInfo json.RawMessage `json:"conn_info,omitempty"`
	ChanInfo json.RawMessage `json:"chan_info,omitempty"`
}

func newAPIClientInfo(i *protocol.ClientInfo) *apiClientInfo {
	if i == nil {
		return nil
	}
	return &apiClientInfo{User: i.User, Client: i.Client,
		ConnInfo: json.RawMessage(i.ConnInfo), ChanInfo: json.RawMessage(i.ChanInfo)}
}

// apiGather waits for a presence question.
func apiGather(db *database, room string, ask func(*database, string, func(*presence, *protocol.Error))) (*presence, *protocol.Error) {
	ns, e := db.namespace(room)
	switch {
	case e != nil:
		return nil, e
	case !ns.Presence:
		return nil, errNotAvailable
	}
	var all *presence
	done := make(chan *protocol.Error, 1)
	ask(db, room, func(p *presence, e *protocol.Error) {
		all = p
		done <- e
	})
	return db.server.await(&all, done)
}

// await waits for an answer of the loops, which end before the context does.
func (s *Server) await(p **presence, done <-chan *protocol.Error) (*presence, *protocol.Error) {
	select {
	case e := <-done:
		return *p, e
	case <-s.ended:
		return nil, errInternal
	}
}

func apiPresence(db *database, body []byte) func() (any, *protocol.Error) {
	return decoded(body, func(req *apiChannelRequest) func() (any, *protocol.Error) {
		return func() (any, *protocol.Error) {
			all, e := apiGather(db, req.Channel, (*database).presence)
			if e != nil {
				return nil, e
			}
			clients := make(map[string]*apiClientInfo, len(all.clients))
			for id, info := range all.clients {
				clients[id] = newAPIClientInfo(info)
			}
			return map[string]any{"presence": clients}, nil
		}
	})
}

func apiPresenceStats(db *database, body []byte) func() (any, *protocol.Error) {
	return decoded(body, func(req *apiChannelRequest) func() (any, *protocol.Error) {
		return func() (any, *protocol.Error) {
			all, e := apiGather(db, req.Channel, (*database).presenceStats)
			if e != nil {
				return nil, e
			}
			st := all.stats()
			return map[string]any{"num_clients": st.NumClients, "num_users": st.NumUsers}, nil
		}
	})
}

type apiPosition struct {
	Offset uint64 `json:"offset"`
	Epoch  string `json:"epoch"`
}

type apiHistoryRequest struct {
	Channel string       `json:"channel"`
	Limit   int32        `json:"limit"`
	Since   *apiPosition `json:"since"`
	Reverse bool         `json:"reverse"`
}

type apiHistoryPublication struct {
	Data   json.RawMessage   `json:"data"`
	Info   *apiClientInfo    `json:"info,omitempty"`
	Offset uint64            `json:"offset"`
	Tags   map[string]string `json:"tags,omitempty"`
	Time   int64             `json:"time"` // unix milliseconds
}

func apiHistory(db *database, body []byte) func() (any, *protocol.Error) {
	return decoded(body, func(req *apiHistoryRequest) func() (any, *protocol.Error) {
		return func() (any, *protocol.Error) {
			page, e := db.apiHistory(req)
			if e != nil {
				return nil, e
			}
			pubs := make([]apiHistoryPublication, len(page.Events))
			for i := range page.Events {
				p := &page.Events[i]
				pubs[i] = apiHistoryPublication{Data: p.Data, Info: newAPIClientInfo(wirePublication(p).Info),
					Offset: p.Offset, Tags: p.Tags, Time: p.Time}
			}
			return map[string]any{"publications": pubs, "offset": page.Top.Offset, "epoch": page.Top.Epoch}, nil
		}
	})
}

func (db *database) apiHistory(req *apiHistoryRequest) (page store.Page, e *protocol.Error) {
	ns, e := db.namespace(req.Channel)
	if e != nil {
		return page, e
	}
	ask := &protocol.HistoryRequest{Channel: req.Channel, Limit: req.Limit, Reverse: req.Reverse}
	if req.Since != nil {
		ask.Since = &protocol.StreamPosition{Offset: req.Since.Offset, Epoch: req.Since.Epoch}
	}
	q, e := newHistoryQuery(ns, ask)
	if e != nil {
		return page, e
	}
	q.MaxBytes = apiHistoryBytes
	return db.history(db.server.context, req.Channel, q)
}

// apiChannels lists the rooms that somebody is subscribed to. The pattern, where
// there is one, is that of path.Match.
func apiChannels(db *database, body []byte) func() (any, *protocol.Error) {
	type request struct {
		Pattern string `json:"pattern"`
	}
	return decoded(body, func(req *request) func() (any, *protocol.Error) {
		return func() (any, *protocol.Error) {
			// A star of Centrifugo's patterns crosses slashes, unlike path.Match's.
			noSlash := strings.NewReplacer("/", "\x00")
			pattern := noSlash.Replace(req.Pattern)
			if _, err := path.Match(pattern, ""); err != nil {
				return nil, badRequest("pattern is malformed")
			}
			channels := make(map[string]any)
			for r := range db.liveRooms() {
				matched, _ := path.Match(pattern, noSlash.Replace(r.name))
				if members := r.members.Load(); members > 0 && (pattern == "" || matched) {
					channels[r.name] = map[string]any{"num_clients": members}
				}
			}
			return map[string]any{"channels": channels}, nil
		}
	})
}

// apiInfo tells about the server, in the shape of a cluster with one node. The
// numbers are those of the database asked.
func apiInfo(db *database, body []byte) func() (any, *protocol.Error) {
	return decoded(body, func(*struct{}) func() (any, *protocol.Error) {
		return func() (any, *protocol.Error) {
			s := db.server
			var mu sync.Mutex
			users := make(map[string]struct{}) // one may have connections in several loops
			s.eachLoop(func(l *loop) {
				mu.Lock()
				defer mu.Unlock()
				for key := range l.users {
					if key.db == db {
						users[key.user] = struct{}{}
					}
				}
			})
			host, _ := os.Hostname()
			db.mu.RLock()
			rooms := len(db.rooms)
			db.mu.RUnlock()
			return map[string]any{"nodes": []map[string]any{{
				"uid": db.store.Epoch(), "name": host, "version": s.opts.Version,
				"num_clients": db.connections.Load(), "num_users": len(users), "num_channels": rooms,
				"uptime": int(time.Since(s.start) / time.Second),
			}}}, nil
		}
	})
}
