package redfish

import (
	"net/http"
	"strconv"
)

// Sensors are what a server's chassis measures while it runs.
type Sensors struct {
	CPU, Inlet int  // degrees Celsius
	Fan        int  // revolutions a minute, of both
	Supply     bool // the second power supply works; so does the first
	Watts      int
}

// Healthy are the sensors of a server that has nothing.
func Healthy() Sensors { return Sensors{CPU: 42, Inlet: 23, Fan: 4200, Supply: true, Watts: 180} }

// From where sensors say Warning and Critical.
const (
	cpuWarning, cpuCritical     = 85, 95
	inletWarning, inletCritical = 42, 47
	fanCritical                 = 600
	supplyWatts                 = 550
)

// SetSensors changes what a server's chassis measures.
func (s *Server) SetSensors(id string, to Sensors) {
	each := s.system(id)
	each.mu.Lock()
	defer each.mu.Unlock()
	each.sensors = to
}

// at are the sensors as they are read: what is off is cool, and its fans stand still.
func (m Sensors) at(power Power) Sensors {
	if power == Off {
		m.CPU, m.Fan, m.Watts = m.Inlet, 0, 4
	}
	return m
}

// above is the health of a value that may be too high.
func above(value, warning, critical int) string {
	switch {
	case value >= critical:
		return "Critical"
	case value >= warning:
		return "Warning"
	}
	return "OK"
}

func fanHealth(reading int, power Power) string {
	if power != Off && reading < fanCritical {
		return "Critical"
	}
	return "OK"
}

func supplyHealth(works bool) string {
	if !works {
		return "Critical"
	}
	return "OK"
}

// health is the worst of all. A power supply of two that fails is a warning: the server runs on.
func (m Sensors) health(power Power) string {
	m = m.at(power)
	worst := "OK"
	supply := "OK"
	if !m.Supply {
		supply = "Warning"
	}
	for _, each := range []string{above(m.CPU, cpuWarning, cpuCritical), above(m.Inlet, inletWarning, inletCritical), fanHealth(m.Fan, power), supply} {
		if each == "Critical" || worst == "OK" {
			worst = each
		}
	}
	return worst
}

func (s *Server) showChassis(each *system, d Domain, w http.ResponseWriter, _ *http.Request) error {
	path := serviceRoot + "/Chassis/" + d.ID
	power := d.Power
	if power == PoweringOff {
		power = On
	}
	return show(w, resource{
		"@odata.id": path, "@odata.type": "#Chassis.v1_23_0.Chassis", "Id": d.ID, "Name": d.Name + "'s chassis", "ChassisType": "RackMount",
		"Manufacturer": manufacturer, "Model": "Domain", "SerialNumber": d.ID[:8], "UUID": d.ID, "PowerState": power, "IndicatorLED": each.light,
		"Status": status(each.sensors.health(d.Power)), "Thermal": link(path + "/Thermal"), "Power": link(path + "/Power"),
		"Links": resource{"ComputerSystems": links(SystemPath(d.ID)), "ManagedBy": links(serviceRoot + "/Managers/" + d.ID)},
	})
}

func (s *Server) thermal(each *system, d Domain, w http.ResponseWriter, _ *http.Request) error {
	path := serviceRoot + "/Chassis/" + d.ID + "/Thermal"
	now := each.sensors.at(d.Power)
	temperature := func(at int, name, context string, reading, warning, critical int) resource {
		return resource{
			"@odata.id": path + "#/Temperatures/" + strconv.Itoa(at), "MemberId": strconv.Itoa(at), "SensorNumber": at + 1, "Name": name,
			"PhysicalContext": context, "ReadingCelsius": reading, "UpperThresholdNonCritical": warning, "UpperThresholdCritical": critical,
			"MinReadingRangeTemp": 0, "MaxReadingRangeTemp": 120, "Status": status(above(reading, warning, critical)),
		}
	}
	fan := func(at int) resource {
		return resource{
			"@odata.id": path + "#/Fans/" + strconv.Itoa(at), "MemberId": strconv.Itoa(at), "Name": "Fan " + strconv.Itoa(at+1),
			"PhysicalContext": "SystemBoard", "Reading": now.Fan, "ReadingUnits": "RPM", "LowerThresholdCritical": fanCritical,
			"MinReadingRange": 0, "MaxReadingRange": 12000, "Status": status(fanHealth(now.Fan, d.Power)),
		}
	}
	return show(w, resource{
		"@odata.id": path, "@odata.type": "#Thermal.v1_7_1.Thermal", "Id": "Thermal", "Name": "Thermal",
		"Temperatures": []resource{
			temperature(0, "CPU Temp", "CPU", now.CPU, cpuWarning, cpuCritical),
			temperature(1, "Inlet Temp", "Intake", now.Inlet, inletWarning, inletCritical),
		},
		"Fans": []resource{fan(0), fan(1)},
	})
}

func (s *Server) power(each *system, d Domain, w http.ResponseWriter, _ *http.Request) error {
	path := serviceRoot + "/Chassis/" + d.ID + "/Power"
	now := each.sensors.at(d.Power)
	works := []bool{true, now.Supply}
	share := now.Watts
	if now.Supply {
		share /= 2
	}
	supplies := make([]resource, len(works))
	for i, each := range works {
		state, output := status(supplyHealth(each)), share
		if !each {
			state["State"], output = "UnavailableOffline", 0
		}
		supplies[i] = resource{
			"@odata.id": path + "#/PowerSupplies/" + strconv.Itoa(i), "MemberId": strconv.Itoa(i), "Name": "Power Supply " + strconv.Itoa(i+1),
			"Manufacturer": manufacturer, "Model": "PSU-550", "SerialNumber": d.ID[:8] + "-" + strconv.Itoa(i), "PowerSupplyType": "AC",
			"LineInputVoltage": 230, "PowerCapacityWatts": supplyWatts, "LastPowerOutputWatts": output, "Status": state,
		}
	}
	return show(w, resource{
		"@odata.id": path, "@odata.type": "#Power.v1_7_1.Power", "Id": "Power", "Name": "Power",
		"PowerControl": []resource{{
			"@odata.id": path + "#/PowerControl/0", "MemberId": "0", "Name": "System Power Control", "PowerConsumedWatts": now.Watts,
			"PowerCapacityWatts": 2 * supplyWatts, "Status": status("OK"),
		}},
		"PowerSupplies": supplies,
	})
}
