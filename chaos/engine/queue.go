package engine

import "slices"

// queue is first in, first out, except that a preempted job returns to the front. The zero value is
// empty.
type queue struct{ jobs []*Job }

func (q *queue) len() int { return len(q.jobs) }

func (q *queue) front() *Job { return q.jobs[0] }

func (q *queue) pushBack(j *Job) { q.jobs = append(q.jobs, j) }

func (q *queue) pushFront(j *Job) { q.jobs = slices.Insert(q.jobs, 0, j) }

func (q *queue) popFront() *Job {
	j := q.jobs[0]
	q.jobs[0] = nil
	q.jobs = q.jobs[1:]
	return j
}

func (q *queue) remove(j *Job) { q.jobs = remove(q.jobs, j) }

func remove(jobs []*Job, j *Job) []*Job {
	if i := slices.Index(jobs, j); i >= 0 {
		return slices.Delete(jobs, i, i+1)
	}
	return jobs
}
