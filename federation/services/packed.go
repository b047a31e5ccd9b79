package services

import (
	"encoding/binary"
	"strconv"
)

// Packed are endpoints in a fraction of their memory: most have texts of the one before. The zero value has none.
type Packed string

// Pack returns endpoints as Packed.
func Pack(all []Endpoint) Packed {
	var b []byte
	var before [7]string
	for _, e := range all {
		addr, _ := e.Addr.MarshalBinary() // it never fails
		texts := [...]string{string(addr), e.Host, e.Locality, e.Network, e.Account, e.Labels, strconv.FormatBool(e.TLS)}
		for i, text := range texts {
			if text == before[i] {
				b = append(b, 0)
			} else {
				b = append(binary.AppendUvarint(b, uint64(len(text))+1), text...)
			}
		}
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(e.Port)), uint64(e.Weight))
		before = texts
	}
	return Packed(b)
}

// Unpack returns the endpoints. Their texts are parts of p.
func (p Packed) Unpack() (all []Endpoint) {
	number := func() uint64 {
		n, size := binary.Uvarint([]byte(p[:min(len(p), binary.MaxVarintLen64)]))
		p = p[size:]
		return n
	}
	var texts [7]string
	for p != "" {
		for i := range texts {
			if n := number(); n > 0 {
				texts[i], p = string(p[:n-1]), p[n-1:]
			}
		}
		e := Endpoint{Host: texts[1], Locality: texts[2], Network: texts[3], Account: texts[4], Labels: texts[5], TLS: texts[6] == "true"}
		_ = e.Addr.UnmarshalBinary([]byte(texts[0])) // Pack has encoded it
		e.Port, e.Weight = uint32(number()), uint32(number())
		all = append(all, e)
	}
	return all
}
