package main

import (
	"fmt"

	networking "istio.io/api/networking/v1alpha3"
)

// makeService makes a service of a registry such as Nacos. Each change gives one instance, the next in turn,
// another weight, or has it unhealthy, or healthy again with another label. A registry gives the revision of the
// service as its version, which such changes leave as it is, and leaves out unhealthy instances.
func makeService(index, seq, instances int) (it item, err error) {
	metadata, entry := itemMetadata(index, seq), itemEntry(index, 0)
	metadata.Version, entry.Endpoints = "1", nil
	for n := range instances {
		turn := (seq + n) / instances // how often this one has changed
		if turn%3 == 2 {
			continue
		}
		entry.Endpoints = append(entry.Endpoints, &networking.WorkloadEntry{
			Address: fmt.Sprintf("10.%d.%d.%d", index>>8&255, index&255, n+1),
			Ports:   map[string]uint32{"https": 8443},
			Weight:  uint32(100 + turn),
			Labels: map[string]string{
				"cluster": "DEFAULT", "preserved.register.source": "SPRING_CLOUD", "version": fmt.Sprint(turn / 3),
			},
		})
	}
	it.seq = seq
	it.element, it.hash, err = encode(metadata, entry)
	return it, err
}
