package raftstore

import (
	"errors"
	"fmt"
)

type joinRequest struct {
	Group     groupID   `json:"group"`
	Leader    string    `json:"leader"`
	Format    int       `json:"format"` // in use; see formatInUse
	Constants Constants `json:"constants"`
	Given     []groupID `json:"given,omitempty"` // see identity
	Size      int       `json:"size,omitempty"`
}

func (s *Store) join(req joinRequest) error {
	switch {
	case req.Group == groupID{}:
		return errors.New("the request names no group")
	case len(req.Given) > maxGiven:
		return fmt.Errorf("the request names %d groups that were given up, at most %d are possible", len(req.Given), maxGiven)
	case req.Format > int(s.cfg.knows):
		return fmt.Errorf("the group's log has format %d, this program knows %d: upgrade this node", req.Format, s.cfg.knows)
	}
	if err := s.fits(req.Constants); err != nil {
		return err
	}
	s.identMu.Lock()
	defer s.identMu.Unlock()
	switch now := s.identity().Group; {
	case now == req.Group:
		return nil
	case now != groupID{}:
		return fmt.Errorf("this node belongs to group %s already, whose state it would lose", now)
	}
	if err := s.setIdentity(identity{ID: s.id, Group: req.Group, Given: req.Given, Size: req.Size}); err != nil {
		return err
	}
	s.log.Info().Str("group", req.Group.String()).Str("leader", req.Leader).Msg("this node was added to a Raft group")
	return nil
}

func (s *Store) admits(h hello) (*link, error) {
	if original, ok := s.originalOf(h); ok {
		s.noteClone(h, original)
		return nil, fmt.Errorf("the raft id %s is that of %s, which is alive: %s; %s", h.ID, original.where(), cloned, cloneRemedy)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.instance == nil || s.instance.link == nil:
		return nil, errLinkClosed
	case s.ident.Group == groupID{}:
		return nil, errors.New("in no group")
	case s.ident.Group != h.Group:
		return nil, fmt.Errorf("of another group: %s, not %s", s.ident.Group, h.Group)
	}
	return s.instance.link, nil
}
