package loadtest

import "slices"

// failures counts errors by kind, and keeps the first text of each.
type failures struct{ kinds []Failure }

func (f *failures) add(kind string, err error) {
	for i := range f.kinds {
		if f.kinds[i].Kind == kind {
			f.kinds[i].Count++
			return
		}
	}
	f.kinds = append(f.kinds, Failure{Kind: kind, Count: 1, First: err.Error()})
}

// merge adds those of one kind that another process counted.
func (f *failures) merge(other Failure) {
	for i := range f.kinds {
		if f.kinds[i].Kind == other.Kind {
			f.kinds[i].Count += other.Count
			return
		}
	}
	f.kinds = append(f.kinds, other)
}

func (f *failures) count() int64 {
	var n int64
	for _, k := range f.kinds {
		n += k.Count
	}
	return n
}

func (f *failures) list() []Failure { return append([]Failure{}, slices.Clone(f.kinds)...) }
