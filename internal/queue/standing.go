package queue

import (
	"time"

	"github.com/google/uuid"
)

// Standing is how an agent stands with the database, asked without registering:
// whoever runs under the same identity goes on undisturbed.
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
}
