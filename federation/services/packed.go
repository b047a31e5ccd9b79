package services

import (
	"encoding/binary"
	"net/netip"
)

// Packed are endpoints in a form that takes a fraction of their memory: most have the texts of the one before. The zero value
// has none.
type Packed string

// Pack returns endpoints as Packed.
func Pack(all []Endpoint) Packed {
	if len(all) == 0 {
		return ""
	}
	b := binary.AppendUvarint(nil, uint64(len(all)))
	before := &Endpoint{}
	for i := range all {
		e := &all[i]
		addr, _ := e.Addr.MarshalBinary() // it never fails
		b = append(append(b, byte(len(addr))), addr...)
		texts := before.texts()
		for i, text := range e.texts() {
			if *text == *texts[i] {
				b = append(b, 0)
			} else {
				b = append(binary.AppendUvarint(b, uint64(len(*text))+1), *text...)
			}
		}
		tls := uint64(0)
		if e.TLS {
			tls = 1
		}
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(e.Port)<<1|tls), uint64(e.Weight))
		before = e
	}
	return Packed(b)
}

func (e *Endpoint) texts() [5]*string {
	return [...]*string{&e.Host, &e.Locality, &e.Network, &e.Account, &e.Labels}
}

// Unpack returns the endpoints. Their texts are parts of p.
func (p Packed) Unpack() []Endpoint {
	if p == "" {
		return nil
	}
	number := func() (n uint64) {
		for shift := 0; ; shift += 7 {
			c := p[0]
			p = p[1:]
			if n |= uint64(c&0x7f) << shift; c < 0x80 {
				return n
			}
		}
	}
	take := func(n uint64) (text string) {
		text, p = string(p[:n]), p[n:]
		return text
	}
	all := make([]Endpoint, number())
	for i := range all {
		e := &all[i]
		if i > 0 {
			*e = all[i-1]
		}
		e.Addr = netip.Addr{}
		_ = e.Addr.UnmarshalBinary([]byte(take(number()))) // Pack has encoded it
		for _, text := range e.texts() {
			if n := number(); n > 0 {
				*text = take(n - 1)
			}
		}
		port := number()
		e.Port, e.TLS, e.Weight = uint32(port>>1), port&1 == 1, uint32(number())
	}
	return all
}
