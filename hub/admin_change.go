package hub

import (
	"errors"
	"log/slog"
	"strconv"

	"hub/store"
)

// revocationRow is a revocation as the admin API shows and takes it; the fields mean
// what they mean in [store.Revocation].
type revocationRow struct {
	ID           int64  `json:"id,omitempty"` // given by the server
	Database     string `json:"database,omitempty"`
	User         string `json:"user,omitempty"`
	TokenID      string `json:"jti,omitempty"`
	IssuedBefore int64  `json:"issued_before,omitempty"`
	Until        int64  `json:"until,omitempty"`
	Created      int64  `json:"created,omitempty"` // given by the server
	Note         string `json:"note,omitempty"`
}

func newRevocationRow(v *store.Revocation) revocationRow {
	return revocationRow{ID: v.ID, Database: v.Database, User: v.User, TokenID: v.TokenID,
		IssuedBefore: v.IssuedBefore, Until: v.Until, Created: v.Created, Note: v.Note}
}

// adminRevoke ends tokens. When it answers, nothing that is published from then on
// reaches those who had them; it survives a restart.
func adminRevoke(c *adminCall) (any, *problem) {
	var req revocationRow
	if p := c.decode(&req); p != nil {
		return nil, p
	}
	c.about(slog.String("database", req.Database), slog.String("user", req.User), slog.String("jti", req.TokenID),
		slog.Int64("issued_before", req.IssuedBefore), slog.Int64("until", req.Until))
	if req.ID != 0 || req.Created != 0 {
		return nil, badBody("id and created are given by the server")
	}
	if _, p := c.databases(req.Database); p != nil { // a name that is misspelt would revoke nothing
		return nil, p
	}
	stored, err := c.s.revoke(c.r.Context(), store.Revocation{Database: req.Database, User: req.User, TokenID: req.TokenID,
		IssuedBefore: req.IssuedBefore, Until: req.Until, Note: req.Note})
	switch {
	case errors.Is(err, store.ErrInvalid):
		return nil, invalid(err)
	case err != nil:
		return nil, c.failed(err)
	}
	c.about(slog.Int64("id", stored.ID))
	return newRevocationRow(&stored), nil
}

// revocationPage is revocations by id.
type revocationPage struct {
	Revocations []revocationRow `json:"revocations"`
	Total       int             `json:"total"`
	Next        string          `json:"next,omitempty"` // the after of the next page; empty at the end
}

func adminRevocations(c *adminCall) (any, *problem) {
	limit, p := pageLimit(c.query)
	if p != nil {
		return nil, p
	}
	after := int64(0)
	if text := c.query.Get("after"); text != "" {
		var err error
		if after, err = strconv.ParseInt(text, 10, 64); err != nil {
			return nil, badBody("after must be the next of another page")
		}
	}
	all := c.s.revoked()
	page := &revocationPage{Revocations: []revocationRow{}, Total: len(all)}
	for i := range all {
		switch {
		case all[i].ID <= after:
		case len(page.Revocations) == limit:
			page.Next = strconv.FormatInt(page.Revocations[limit-1].ID, 10)
			return page, nil
		default:
			page.Revocations = append(page.Revocations, newRevocationRow(&all[i]))
		}
	}
	return page, nil
}

// adminRestore takes a revocation back.
func adminRestore(c *adminCall) (any, *problem) {
	id, err := strconv.ParseInt(c.r.PathValue("id"), 10, 64)
	if err != nil {
		return nil, badBody("the id of a revocation is a number")
	}
	c.about(slog.Int64("id", id))
	switch err := c.s.restore(c.r.Context(), id); {
	case errors.Is(err, store.ErrNotFound):
		return nil, newProblem("not_found", "there is no such revocation")
	case err != nil:
		return nil, c.failed(err)
	}
	return nil, nil
}

// capacityRow is a cap of connections, see [capacity].
type capacityRow struct {
	Scope    string `json:"scope"`              // server, database or ip
	Database string `json:"database,omitempty"` // of scope database; absent: each that has none of its own
	File     int    `json:"file"`               // what the configuration says; 0 is off
	Override *int   `json:"override"`           // what was set while running; null: nothing
	Limit    int    `json:"limit"`              // in force; 0 is off
	Present  *int   `json:"present"`            // connections of now; null where the row is about many
}

func adminCapacity(c *adminCall) (any, *problem) {
	rows := []capacityRow{}
	for _, row := range c.s.capacities() {
		r := capacityRow{Scope: row.Scope, Database: row.Database, File: row.File, Override: row.Override, Limit: row.Limit}
		if row.Scope == scopeServer || row.Database != "" {
			r.Present = &row.Present
		}
		rows = append(rows, r)
	}
	return map[string]any{"capacity": rows}, nil
}

// adminSetCapacity sets a cap, at once and durably. Connections above it stay.
func adminSetCapacity(c *adminCall) (any, *problem) {
	var req struct {
		Scope    string `json:"scope"`
		Database string `json:"database"`
		Limit    *int   `json:"limit"`
	}
	if p := c.decode(&req); p != nil {
		return nil, p
	}
	c.about(slog.String("scope", req.Scope), slog.String("database", req.Database))
	if req.Limit == nil {
		return nil, badBody("limit is missing; 0 is off")
	}
	c.about(slog.Int("limit", *req.Limit))
	if _, p := c.databases(req.Database); p != nil {
		return nil, p
	}
	return c.capacityChanged(c.s.setCap(c.r.Context(), store.Cap{Scope: req.Scope, Database: req.Database, Limit: *req.Limit}))
}

// adminResetCapacity makes what the configuration says hold again. There need be no
// override, and no such database any more.
func adminResetCapacity(c *adminCall) (any, *problem) {
	scope, database := c.query.Get("scope"), c.query.Get("database")
	c.about(slog.String("scope", scope), slog.String("database", database))
	return c.capacityChanged(c.s.resetCap(c.r.Context(), scope, database))
}

func (c *adminCall) capacityChanged(err error) (any, *problem) {
	switch {
	case errors.Is(err, store.ErrInvalid):
		return nil, invalid(err)
	case err != nil:
		return nil, c.failed(err)
	}
	return adminCapacity(c)
}
