package auth

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Entries returns the entries of the rights, such as "subscribe, publish on chat.>, news".
func (rs Rights) Entries() (texts []string) {
	for _, e := range rs.entries {
		texts = append(texts, e.String())
	}
	return texts
}

// String returns "subscribe, publish on chat.>, news".
func (e entry) String() string {
	allow := make([]string, len(e.allow))
	for i, r := range e.allow {
		allow[i] = string(r)
	}
	return strings.Join(allow, ", ") + " on " + strings.Join(e.topics, ", ")
}

// Explain says why the rights include a right on a topic or pattern, or not. It names the entry
// that does, or the one that comes closest. The error is about the right or the name.
func (rs Rights) Explain(r Right, name string) (allowed bool, why string, err error) {
	if !slices.Contains(AllRights(), r) {
		return false, "", fmt.Errorf("%s is not a right; the rights are %v", wire.Quote(r), AllRights())
	}
	if err := wire.CheckPattern(name); err != nil {
		return false, "", err
	}
	asked := r
	r, name = needed(r, name)
	if r != asked {
		why = fmt.Sprintf("This topic needs the right %s on %q. ", r, name)
	}
	closest, most := "", -1
	for _, e := range rs.entries {
		for _, by := range e.topics {
			allows, covered := slices.Contains(e.allow, r), covers(by, name)
			near := 2 * sharedSegments(by, name)
			switch {
			case allows && covered:
				return true, why + fmt.Sprintf("The entry %q allows it, by the name %q.", e, by), nil
			case covered:
				near += 1000
			case allows:
				near++
			}
			if near > most {
				closest, most = e.misses(r, name, by, allows, covered), near
			}
		}
	}
	if most < 0 {
		closest = "No entry grants anything."
	}
	return false, why + closest, nil
}

// misses says what an entry lacks for a right on a name. by is the entry's name that comes
// closest.
func (e entry) misses(r Right, name, by string, allows, covered bool) string {
	lacks := fmt.Sprintf("%q does not include %q", by, name)
	switch {
	case covered:
		lacks = fmt.Sprintf("%q includes it, but the right %s is missing", by, r)
	case allows && wire.IsPattern(name):
		lacks += ", and one name must cover the whole pattern"
	case !allows:
		lacks += fmt.Sprintf(", and the right %s is missing", r)
	}
	return fmt.Sprintf("The entry %q comes closest: %s.", e, lacks)
}

// sharedSegments returns how many segments two names have in common at their beginning. A wildcard
// is like any segment.
func sharedSegments(by, name string) (n int) {
	a, b := strings.Split(by, "."), strings.Split(name, ".")
	for n < len(a) && n < len(b) && (a[n] == b[n] || a[n] == "*" || a[n] == ">") {
		n++
	}
	return n
}
