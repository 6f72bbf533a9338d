package httpapi

import (
	"net/http"
	"time"

	"github.com/gorilla/mux"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func (a *API) openSession(w http.ResponseWriter, r *http.Request, p auth.Principal) error {
	var open wire.OpenRequest
	if err := readJSON(w, r, &open); err != nil {
		return err
	}
	if err := a.allowAll(p, open.Topics); err != nil {
		return err
	}
	except, err := exceptOf(open.Client, open.Echo == nil || *open.Echo)
	if err != nil {
		return err
	}
	ack := open.Ack == nil || *open.Ack
	s, positions, err := a.Sessions.Open(session.Opening{Topics: open.Topics, Ack: ack, Except: except}, time.Now())
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/sessions/"+s.ID())
	return a.writeJSON(w, http.StatusCreated, wire.SessionOpened{
		Session: s.ID(), Ack: ack, Positions: positions, Limits: *a.Limits(),
	})
}

func (a *API) changeSession(w http.ResponseWriter, r *http.Request, p auth.Principal) error {
	s, err := a.sessionOf(r)
	if err != nil {
		return err
	}
	var change wire.ChangeRequest
	if err := readJSON(w, r, &change); err != nil {
		return err
	}
	if err := a.allowAll(p, change.Add); err != nil {
		return err
	}
	positions, err := s.Change(change.Add, change.Remove)
	if err != nil {
		return err
	}
	return a.writeJSON(w, http.StatusOK, wire.SessionChanged{Positions: positions})
}

func (a *API) showSession(w http.ResponseWriter, r *http.Request, p auth.Principal) error {
	s, err := a.sessionOf(r)
	if err != nil {
		return err
	}
	return a.writeJSON(w, http.StatusOK, s.State(time.Now()))
}

func (a *API) closeSession(w http.ResponseWriter, r *http.Request, _ auth.Principal) error {
	s, err := a.sessionOf(r)
	if err != nil {
		return err
	}
	a.Sessions.End(s)
	a.patience(w)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// sessionOf returns the session named in the path. Its id is the capability: who
// has it is the subscriber.
func (a *API) sessionOf(r *http.Request) (*session.Session, error) {
	return a.Sessions.Get(mux.Vars(r)["id"])
}
