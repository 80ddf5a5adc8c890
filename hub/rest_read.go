package hub

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/centrifugal/protocol"

	"hub/auth"
)

const (
	// restPage and maxRestPage are the elements of a page, by default and at most.
	restPage    = 100
	maxRestPage = 1000
	// restPageBytes bounds what the publications of a page carry.
	restPageBytes = 1 << 20
	// maxSnapshot bounds a snapshot over HTTP, in bytes of its JSON, which are held
	// until its reader has taken them.
	maxSnapshot = 4 << 20
)

// historyPage is a page of a room's history.
type historyPage struct {
	Publications []restPublication `json:"publications"`
	// Next is the after of the next page; absent at the end.
	Next uint64 `json:"next,omitempty"`
	// Pruned: what comes directly after the offset asked for is not kept any more.
	Pruned bool `json:"pruned,omitempty"`
	// Offset and Epoch are the room's position.
	Offset uint64 `json:"offset"`
	Epoch  string `json:"epoch"`
}

type restPublication struct {
	Offset   uint64            `json:"offset"`
	Time     int64             `json:"time"` // unix milliseconds
	User     string            `json:"user,omitempty"`
	Client   string            `json:"client,omitempty"`
	ConnInfo json.RawMessage   `json:"conn_info,omitempty"`
	ChanInfo json.RawMessage   `json:"chan_info,omitempty"`
	Tags     map[string]string `json:"tags,omitempty"`
	Data     json.RawMessage   `json:"data"`
}

func restHistory(c *call) *problem {
	ns, e := c.db.namespace(c.room)
	if e == nil {
		e = c.db.permit(&c.caller, c.room, ns.History, auth.History, "history")
	}
	if e != nil {
		return protocolProblem(e)
	}
	limit, p := pageLimit(c.query)
	if p != nil {
		return p
	}
	ask := &protocol.HistoryRequest{Limit: int32(limit)}
	if ask.Reverse, p = c.reverse(); p != nil {
		return p
	}
	if ask.Since, p = c.since(); p != nil {
		return p
	}
	q, e := newHistoryQuery(ns, ask)
	if e != nil {
		return protocolProblem(e)
	}
	// An epoch alone is no place to begin at.
	q.HasSince = c.query.Has("after")
	q.MaxBytes = restPageBytes
	page, e := c.db.history(c.r.Context(), c.room, q)
	if e != nil {
		return protocolProblem(e)
	}
	result := historyPage{Publications: make([]restPublication, len(page.Events)),
		Pruned: page.Pruned, Offset: page.Top.Offset, Epoch: page.Top.Epoch}
	for i := range page.Events {
		p := &page.Events[i]
		result.Publications[i] = restPublication{Offset: p.Offset, Time: p.Time, User: p.User, Client: p.Client,
			ConnInfo: p.ConnInfo, ChanInfo: p.ChanInfo, Tags: p.Tags, Data: p.Data}
	}
	// Backwards nothing tells where the history ends but an empty page.
	if n := len(page.Events); n > 0 {
		if last := page.Events[n-1].Offset; last > 1 && q.Reverse || last < page.Top.Offset && !q.Reverse {
			result.Next = last
		}
	}
	return c.answer(result)
}

// pageLimit is the number of elements of a page.
func pageLimit(query url.Values) (int, *problem) {
	if !query.Has("limit") {
		return restPage, nil
	}
	n, err := strconv.ParseUint(query.Get("limit"), 10, 16)
	if err != nil || n < 1 || n > maxRestPage {
		return 0, newProblem("bad_request", "limit must be between 1 and 1000")
	}
	return int(n), nil
}

func (c *call) reverse() (bool, *problem) {
	switch c.query.Get("reverse") {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	if c.query.Has("reverse") {
		return false, newProblem("bad_request", "reverse must be true or false")
	}
	return false, nil
}

// since is the position that after and epoch make; nil without both.
func (c *call) since() (*protocol.StreamPosition, *problem) {
	if !c.query.Has("after") && !c.query.Has("epoch") {
		return nil, nil
	}
	since := &protocol.StreamPosition{Epoch: c.query.Get("epoch")}
	if c.query.Has("after") {
		var err error
		if since.Offset, err = strconv.ParseUint(c.query.Get("after"), 10, 63); err != nil {
			return nil, newProblem("bad_request", "after must be an offset")
		}
	} else {
		since.Offset = 1 // not used
	}
	return since, nil
}

// restMembers is who is subscribed to a room, by the ids of their connections.
type restMembers struct {
	Presence   map[string]*apiClientInfo `json:"presence"`
	NumClients uint32                    `json:"num_clients"`
	NumUsers   uint32                    `json:"num_users"`
}

func restPresence(c *call) *problem {
	ns, e := c.db.namespace(c.room)
	if e == nil {
		e = c.db.permit(&c.caller, c.room, ns.PresenceInfo, auth.Presence, "presence_info")
	}
	if e != nil {
		return protocolProblem(e)
	}
	all, e := apiGather(c.db, c.room, (*database).presence)
	if e == errLimitExceeded {
		return newProblem("too_large", "the room has more members than presence_max")
	}
	if e != nil {
		return protocolProblem(e)
	}
	result := restMembers{Presence: make(map[string]*apiClientInfo, len(all.clients)), NumClients: uint32(len(all.clients))}
	users := make(map[string]struct{}, len(all.clients))
	for id, info := range all.clients {
		result.Presence[id] = newAPIClientInfo(info)
		users[info.User] = struct{}{}
	}
	result.NumUsers = uint32(len(users))
	return c.answer(result)
}

func restResource(c *call) *problem {
	res, p := c.db.getResource(c.r.Context(), &c.caller, c.room, c.r.PathValue("key"))
	if p != nil {
		return p
	}
	h := c.w.Header()
	etag := `"` + strconv.FormatUint(res.Version, 10) + `"`
	h["Etag"] = []string{etag}
	h["Cache-Control"] = revalidated
	if matches(c.r.Header["If-None-Match"], etag) {
		c.w.WriteHeader(http.StatusNotModified)
		return nil
	}
	return c.answer(res)
}

// matches says whether one of the entity tags of If-None-Match is etag, by weak
// comparison (RFC 9110 sections 8.8.3.2 and 13.1.2).
func matches(lists []string, etag string) bool {
	for _, list := range lists {
		for tag := range strings.SplitSeq(list, ",") { // our tags hold no comma
			tag = strings.Trim(tag, " \t")
			if tag == "*" || strings.TrimPrefix(tag, "W/") == etag {
				return true
			}
		}
	}
	return false
}

func restList(c *call) *problem {
	q := resourceQuery{prefix: c.query.Get("prefix"), after: c.query.Get("after")}
	var p *problem
	if q.limit, p = pageLimit(c.query); p != nil {
		return p
	}
	page, p := c.db.listResources(c.r.Context(), &c.caller, c.room, q)
	if p != nil {
		return p
	}
	return c.answer(page)
}

func restSnapshot(c *call) *problem {
	all, p := c.db.snapshot(c.r.Context(), &c.caller, c.room, maxSnapshot)
	if p != nil {
		return p
	}
	return c.answer(all)
}

func restOperation(c *call) *problem {
	result, p := c.db.findOperation(c.r.Context(), &c.caller, c.room, c.r.PathValue("id"))
	if p != nil {
		return p
	}
	return c.answer(result)
}
