package document

// Merge returns value with patch merged into it (RFC 7396), in memory of its own:
// members of value keep their order and the spelling of their names, new ones
// come last in the patch's order. Both must be results of this package, or there
// may be an error; the result nests no deeper than the deeper of them, so it stays
// within [MaxDepth]. Time is linear in both.
func Merge(value, patch []byte) ([]byte, error) {
	pc := cursor{doc: patch}
	p := pc.patch(0)
	vc := cursor{doc: value}
	result := p.apply(make([]byte, 0, len(value)+len(patch)), &vc)
	if pc.broken || vc.broken || pc.at != len(patch) || vc.at != len(value) {
		return nil, errMalformed
	}
	return result, nil
}

// patch is a merge patch that has been read: no text is looked at again on the
// next level.
type patch struct {
	object  bool
	text    []byte         // unless it is an object
	members []patchMember  // of an object
	index   map[string]int // of members by name; nil when they are few
}

type patchMember struct {
	quoted []byte // the name as it is written
	name   []byte // the name
	value  patch
	merged bool // into a member of the value
}

// fewMembers are looked through faster than a map is made for them.
const fewMembers = 8

// patch reads the value at the cursor.
func (c *cursor) patch(depth int) patch {
	p := patch{object: c.peek() == '{'}
	start := c.at
	if !p.object {
		c.skip()
		p.text = c.doc[start:c.at]
		return p
	}
	if depth == MaxDepth {
		c.broken = true
		return p
	}
	for {
		quoted, ok := c.member()
		if !ok {
			break
		}
		p.members = append(p.members, patchMember{quoted: quoted, name: unquote(quoted), value: c.patch(depth + 1)})
	}
	if len(p.members) > fewMembers {
		p.index = make(map[string]int, len(p.members))
		for i := range p.members {
			p.index[string(p.members[i].name)] = i
		}
	}
	return p
}

// member returns what the patch says of a member, or nil.
func (p *patch) member(name []byte) *patchMember {
	if p.index != nil {
		if i, ok := p.index[string(name)]; ok {
			return &p.members[i]
		}
		return nil
	}
	for i := range p.members {
		if string(p.members[i].name) == string(name) {
			return &p.members[i]
		}
	}
	return nil
}

// remove reports whether the patch is null, which takes a member away.
func (p *patch) remove() bool { return string(p.text) == "null" }

// apply is MergePatch of RFC 7396 section 2: it appends the value at the cursor,
// with the patch merged into it, and moves behind the value.
func (p *patch) apply(dst []byte, c *cursor) []byte {
	if !p.object {
		c.skip()
		return append(dst, p.text...)
	}
	dst = append(dst, '{')
	first := len(dst)
	name := func(quoted []byte) {
		if len(dst) > first {
			dst = append(dst, ',')
		}
		dst = append(append(dst, quoted...), ':')
	}
	if c.peek() != '{' {
		c.skip() // what is not an object is taken for an empty one
	} else {
		for {
			quoted, ok := c.member()
			if !ok {
				break
			}
			m := p.member(unquote(quoted))
			switch start := c.at; {
			case m == nil:
				c.skip()
				name(quoted)
				dst = append(dst, c.doc[start:c.at]...)
			case m.value.remove():
				c.skip()
			default:
				m.merged = true
				name(quoted)
				dst = m.value.apply(dst, c)
			}
		}
	}
	for i := range p.members {
		if m := &p.members[i]; !m.merged && !m.value.remove() {
			name(m.quoted)
			dst = m.value.apply(dst, &cursor{doc: absent})
		}
	}
	return append(dst, '}')
}

// absent stands for the value of a member that there is not.
var absent = []byte("null")
