package mirror

import (
	"context"
	"errors"
)

// Event is the kind of a change.
type Event string

// The events, as istiod's model package has them.
const (
	EventAdd    Event = "add"
	EventUpdate Event = "update"
	EventDelete Event = "delete"
)

// Handler handles a change. old is nil for an add, cur is nil for a delete.
type Handler func(old, cur *Resource, event Event)

// ConfigStore is a set of resources with unique keys. The results of Get and List are read-only.
type ConfigStore interface {
	// Get returns nil when there is no such resource.
	Get(key Key) *Resource
	// List returns the resources of a kind, sorted by full name: those of one namespace, or
	// all when namespace is empty.
	List(kind Kind, namespace string) []*Resource
	// Create fails with ErrExists when the key is taken.
	Create(r *Resource) error
	// Update replaces the resource that has r's key. It fails with ErrNotFound when
	// there is none and with ErrConflict when its version is not expectVersion.
	Update(r *Resource, expectVersion string) error
	// Delete removes a resource. It fails as Update does.
	Delete(key Key, expectVersion string) error
}

// ConfigStoreCache is a ConfigStore that announces its changes.
type ConfigStoreCache interface {
	ConfigStore
	// RegisterEventHandler adds a handler for the events of one kind, or of all kinds when kind is
	// the zero Kind. It fails with ErrRunning once Run was called. Handlers run in the order of
	// their registration, on one goroutine, and must not block. When one runs, the store is at
	// least as new as its event: a later delete may already have overtaken an add.
	RegisterEventHandler(kind Kind, h Handler) error
	// Run delivers events until ctx ends. It is called once.
	Run(ctx context.Context) error
	// HasSynced reports whether the initial content is complete and delivered to every
	// handler. Once true it stays true.
	HasSynced() bool
}

// Errors of stores, to be checked with errors.Is.
var (
	ErrExists   = errors.New("resource already exists")
	ErrNotFound = errors.New("resource not found")
	ErrConflict = errors.New("resource version conflict")
	ErrRunning  = errors.New("event handlers must be registered before Run")
	ErrReadOnly = errors.New("the merged view is read-only: change the upstream")
)
