package queue

import (
	"time"

	"github.com/google/uuid"
)

// Standing is the database's answer to how an agent would stand with it.
type Standing struct {
	ClusterID   uuid.UUID `json:"cluster_id"`
	ClusterName string    `json:"cluster_name"`
	// Contract is the database's.
	Contract int `json:"contract"`
	// Now is the database's clock.
	Now time.Time `json:"now"`
	// Paused: people have paused the cluster, so it is given no work.
	Paused bool `json:"paused"`
	// NameTakenOn is the host of another live agent of the same name, "" for none.
	NameTakenOn string `json:"name_taken_on"`
	// BroadPublications are the publications that carry more of the contract's tables
	// than people may watch.
	BroadPublications []string `json:"broad_publications"`
}
