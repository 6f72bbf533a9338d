package loadtest

import "time"

// What a run does otherwise when the clients are in other processes.

// connectCrew hears how many are ready.
func (r *run) connectCrew() {
	if ready := r.crew.sum().Ready; ready != r.ready {
		r.ready, r.phaseEnds = ready, 0
	}
	if r.ready == r.shape.clients() {
		r.crew.tune()
		r.crew.pace.Store(int64(calmly))
	}
}

// firstInstant returns when the schedule begins, and tells the crew.
func (r *run) firstInstant(now time.Duration) time.Duration {
	if r.crew == nil {
		return now + lead
	}
	r.crew.start(now + crewLead)
	return now + crewLead
}

// delivered returns how many deliveries were seen.
func (r *run) delivered() int64 {
	if r.crew == nil {
		return r.verifier.delivered
	}
	return r.crew.sum().Delivered
}

// missing returns how many deliveries have not come.
func (r *run) missing() int64 { return r.verifier.expected - r.delivered() }

// awaitCrew has the last deliveries seen soon.
func (r *run) awaitCrew() {
	if r.crew != nil {
		r.crew.pace.Store(int64(briskly))
	}
}

// failuresSoFar counts those of all processes.
func (r *run) failuresSoFar() int64 {
	if r.crew == nil {
		return r.failures.count()
	}
	return r.failures.count() + r.crew.sum().Failures
}
