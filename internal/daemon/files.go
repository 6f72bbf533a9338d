package daemon

import (
	"go.uber.org/zap"
)

// openFiles is how many files the process may have open, connections among them; 0:
// that is not known, and no bound.
type openFiles int

// reserve is how many are not for clients: listeners, the admin one's connections,
// calls of hooks, the state file, the second descriptor that a connection has on its
// way to the lane and back.
func (f openFiles) reserve() int { return min(int(f)/4, leastReserve+int(f)/64) }

const leastReserve = 2*adminConnections + 56

// connections is how many connections of clients there may be where so many are said;
// 0 is as many as there are files for.
func (f openFiles) connections(said int) int {
	if said == 0 && f > 0 {
		return int(f) - f.reserve()
	}
	return said
}

// tell logs how many there may be, and that what is said of connections is too much.
func (f openFiles) tell(log *zap.Logger, said int) {
	if f == 0 {
		return
	}
	room := f.connections(0)
	log.Info("files", zap.Int("open_files", int(f)), zap.Int("for_connections", f.connections(said)))
	if said > room {
		log.Warn("limits.connections is more than there are files for: raise the limit of open files (ulimit -n, LimitNOFILE), or lower it",
			zap.Int("limits.connections", said), zap.Int("open_files", int(f)), zap.Int("fit", room))
	}
}
