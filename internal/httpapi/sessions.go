package httpapi

import (
	"net/http"
	"time"

	"github.com/gorilla/mux"

	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func (a *API) openSession(w http.ResponseWriter, r *http.Request, p asker) error {
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
	s, positions, err := a.open(r.Context(), p, session.Opening{Topics: open.Topics, Ack: ack, Except: except})
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/sessions/"+s.ID())
	return a.writeJSON(w, http.StatusCreated, wire.SessionOpened{
		Session: s.ID(), Ack: ack, Positions: positions, Limits: *a.Limits(),
	})
}

func (a *API) changeSession(w http.ResponseWriter, r *http.Request, p asker) error {
	s, err := a.sessionOf(r, p)
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
	var positions []wire.Position
	err = a.call(r.Context(), p, func() error {
		positions, err = s.Change(change.Add, change.Remove)
		return err
	})
	if err != nil {
		return err
	}
	return a.writeJSON(w, http.StatusOK, wire.SessionChanged{Positions: positions})
}

func (a *API) showSession(w http.ResponseWriter, r *http.Request, p asker) error {
	s, err := a.sessionOf(r, p)
	if err != nil {
		return err
	}
	return a.writeJSON(w, http.StatusOK, s.State(time.Now()))
}

func (a *API) closeSession(w http.ResponseWriter, r *http.Request, p asker) error {
	s, err := a.sessionOf(r, p)
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
func (a *API) sessionOf(r *http.Request, p asker) (*session.Session, error) {
	return a.session(p, mux.Vars(r)["id"])
}
