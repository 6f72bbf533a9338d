package throttle

// faults are what must not happen: how often it did, and the first time.
type faults struct {
	count int64
	first error
}

// note counts an error, if it is one.
func (f *faults) note(err error) {
	if err == nil {
		return
	}
	if f.count++; f.first == nil {
		f.first = err
	}
}

func (f *faults) merge(other faults) {
	if f.count += other.count; f.first == nil {
		f.first = other.first
	}
}
