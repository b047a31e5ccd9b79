package mirror

// Restorer builds resources from their stored form. It keeps memory from one to the next, because a
// relay restores all that it has before it serves anybody. The zero Restorer is ready for use, by
// one goroutine.
type Restorer struct {
	metadata metadata
}

// Restore builds a resource from its stored form: its kind, its Any, and three texts that the
// Any does not hold. The result equals the resource of that Any, and has its Digest. Restore
// copies data, which the caller may reuse, and fails as Decode does.
func (s *Restorer) Restore(kind Kind, data []byte, source, cluster string, sourceVersion []byte) (*Resource, error) {
	s.metadata.empty()
	body, err := s.metadata.parseElement(kind, data)
	if err != nil {
		return nil, err
	}
	s.metadata.version = sourceVersion // the version in data is the relay's
	return build(kind, s.metadata, body, from{source, cluster})
}
