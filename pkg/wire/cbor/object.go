package cbor

import (
	"errors"
	"fmt"
	"slices"
)

// MaxMembers is the most members that MapToJSON and MembersToJSON read. Repeated and unknown
// members would otherwise cost much time before they are refused.
const MaxMembers = 32

var errMembers = fmt.Errorf("it must have at most %d keys", MaxMembers)

// MapToJSON returns a CBOR map, one whole item with text keys, as a JSON object without the
// kept members. It returns those in CBOR, as they are and not checked.
func MapToJSON(item []byte, kept ...string) (object []byte, members map[string][]byte, err error) {
	return mapToJSON(item, func(name string) bool { return !slices.Contains(kept, name) })
}

// MembersToJSON is MapToJSON with only the named members. It skips the other members.
func MembersToJSON(item []byte, names ...string) (object []byte, err error) {
	object, _, err = mapToJSON(item, func(name string) bool { return slices.Contains(names, name) })
	return object, err
}

func mapToJSON(item []byte, converts func(name string) bool) (object []byte, others map[string][]byte, err error) {
	r := &Reader{b: item}
	h, err := r.Head()
	if err == nil && h.Major != Map {
		err = errors.New("it is not a map")
	}
	if err != nil {
		return nil, nil, err
	}
	var keys mapKeys
	others = make(map[string][]byte)
	object = []byte{'{'}
	for n := uint64(0); r.More(h, n); n++ {
		if n == MaxMembers {
			return nil, nil, errMembers
		}
		key, err := r.key()
		if err != nil {
			return nil, nil, err
		}
		value, rest, err := Cut(r.b[r.at:])
		if err != nil {
			return nil, nil, err
		}
		r.at = len(r.b) - len(rest)
		keys = append(keys, key)
		if name := string(key); !converts(name) {
			others[name] = value
			continue
		}
		if len(object) > 1 {
			object = append(object, ',')
		}
		object = append(AppendJSONString(object, key), ':')
		of := Reader{b: value}
		if object, err = of.appendJSON(object, 1); err != nil {
			return nil, nil, fmt.Errorf("%.16q: %w", key, err) // at most 64 bytes, as wire.Quote
		}
	}
	if !keys.close(0) {
		return nil, nil, errDuplicate
	}
	return append(object, '}'), others, nil
}
